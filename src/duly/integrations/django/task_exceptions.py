"""Exceptions of bodies that ended in this process, kept until their ends are told."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from duly.context import current
from duly.errors import RunFailed
from duly.registry import Definition
from duly.run import Run

_MOST = 1_000


class RecentExceptions:
    """The newest exceptions, by run."""

    def __init__(self) -> None:
        self._errors: dict[str, Exception] = {}

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Keep what the body of the current run raises in a block."""
        try:
            yield
        except Exception as error:
            self._errors[current().run_id] = error
            if len(self._errors) > _MOST:
                # Another thread may add one meanwhile; then the next one makes room.
                with suppress(RuntimeError):
                    self._errors.pop(next(iter(self._errors)), None)
            raise

    def pop(self, run_id: str) -> Exception | None:
        """Return what a run raised here, and forget it."""
        return self._errors.pop(run_id, None)


def exception_for(
    run: "Run[object]", definition: Definition | None, raised: Exception | None
) -> Exception:
    """Return what Django is told of a run that failed: what it raised, if that is known here.

    An exception may show arguments that are secret. Of a call with such, and of a body in another
    process, it is the text that is stored.
    """
    record = run.record
    shown = None if definition is None else definition.codec.redacted(record.arguments)
    if raised is not None and shown == record.arguments:
        return raised
    stored = RunFailed(run.id, record.cause, record.error)
    if record.traceback:
        stored.add_note(record.traceback)
    return stored

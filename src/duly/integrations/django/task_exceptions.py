"""Keeps the exceptions of tasks that ended in this process until their ends are reported."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from duly import Run, current
from duly.core.call_view import CallView, RegisteredTasks
from duly.errors import RunFailed

_MOST = 1_000


class RecentExceptions:
    """The newest exceptions, by run."""

    def __init__(self) -> None:
        self._errors: dict[str, Exception] = {}

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Keep an exception that the current run raises in the block."""
        try:
            yield
        except Exception as error:
            self._errors[current().run_id] = error
            if len(self._errors) > _MOST:
                # Another thread may add an exception during this. Then the next exception makes
                # room.
                with suppress(RuntimeError):
                    self._errors.pop(next(iter(self._errors)), None)
            raise

    def pop(self, run_id: str) -> Exception | None:
        """Return the exception that a run raised here, and forget it."""
        return self._errors.pop(run_id, None)


def exception_for(
    run: "Run[object]", tasks: RegisteredTasks, raised: Exception | None
) -> Exception:
    """Return the exception to report to Django for a failed run: the original one, if known here.

    An exception may show secret arguments. If the call has some, or if the task ran in another
    process, the exception has only the stored text.
    """
    record = run.record
    if raised is not None and not CallView(tasks).has_secrets(record):
        return raised
    stored = RunFailed(run.id, record.cause, record.error)
    if record.traceback:
        stored.add_note(record.traceback)
    return stored

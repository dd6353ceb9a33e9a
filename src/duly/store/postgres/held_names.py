"""Keys, events and locks that open transactions hold, and waiting for their release.

No write waits for them on the connection that all writes share. A write that meets a held name
raises NameHeld after a moment, and its caller tries again later. All later tries together take only
a small part of the time of that connection.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from duly.clock import jitter, monotonic
from duly.errors import DulyError, StoreBusy, WouldBlockItself
from duly.store.group_commit import Answers, Done
from duly.store.ops.guard import RenewKey
from duly.store.ops.locks import RenewLock
from duly.store.ops.op import AnyOp
from duly.store.ops.runs import Enqueue
from duly.store.ops.steps import SendEvent

HELD_SECONDS = 10.0
OWN_SECONDS = 2.0
"""For a name that a caller's transaction in this process took. That caller may wait for this."""
_SHORTEST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.1
_APART_PAUSE_SECONDS = 0.02
_AGAIN_SECONDS = 0.05
"""For this long after a try that met a held name, no other caller in this process tries it."""
_REST = 10
"""The pause after a try that met a held name, as a multiple of the duration of the try."""
_MOST = 1_000


class NameHeld(DulyError):
    """A transaction that is still open holds one of these names. Nothing was written."""


class HeldNames:
    """Waits for held names, and records the names that callers of this process may hold."""

    def __init__(
        self,
        shown_url: str,
        write: Callable[[Sequence[AnyOp]], Answers],
    ) -> None:
        self._shown_url = shown_url
        self._write = write
        self._rests_until = -math.inf
        self._mutex = threading.Lock()
        self._own: dict[str, None] = {}
        self._met_at: dict[str, float] = {}
        """When a try last met a held name, by name. Removed when a later try writes the name."""
        self._apart: dict[_NameWaiter, Done] = {}
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()

    def note(self, op: Enqueue | SendEvent) -> None:
        """Remember the key or the event of an op on a caller's connection."""
        for name in _names([op]):
            self._own.pop(name, None)
            self._own[name] = None
        if len(self._own) > _MOST:
            # Copied first, because other threads add names at the same time.
            for name in list(self._own)[: _MOST // 2]:
                self._own.pop(name, None)

    def is_held(self, ops: Sequence[AnyOp]) -> bool:
        """Return whether a try met one of the names just now, so that a new try would only wait."""
        if not self._met_at:
            return False
        since = monotonic() - _AGAIN_SECONDS
        return any(self._met_at.get(name, -math.inf) > since for name in _names(ops))

    def note_held(self, ops: Sequence[AnyOp]) -> None:
        """Remember that these ops met a held name, if it is known which name it is."""
        names = set(_names(ops))
        if len(self._met_at) > _MOST:
            self._met_at.clear()
        if len(names) == 1:
            self._met_at[names.pop()] = monotonic()

    def wait(self, ops: Sequence[AnyOp]) -> Answers:
        """Write the ops as soon as their names are released. Return their answers."""
        waiting = self._waiting(ops)
        pause = _SHORTEST_PAUSE_SECONDS
        while not waiting.is_over:
            time.sleep(pause * (0.5 + jitter()))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            with contextlib.suppress(NameHeld):
                return self._try(ops)
        raise waiting.refusal(self._shown_url)

    def wait_on_shared_thread(self, ops: Sequence[AnyOp], done: Done) -> None:
        """Do the same in a thread that is shared by all callers that must not block."""
        with self._changing:
            self._apart[self._waiting(ops)] = done
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="duly-held-key", daemon=True)
                thread.start()
                self._thread = thread

    def _waiting(self, ops: Sequence[AnyOp]) -> "_NameWaiter":
        names = _names(ops)
        return _NameWaiter(ops, names, next((name for name in names if name in self._own), None))

    def _try(self, ops: Sequence[AnyOp]) -> Answers:
        with self._mutex:
            began = monotonic()
            if began < self._rests_until or self.is_held(ops):
                raise NameHeld
            try:
                answers = self._write(ops)
            except NameHeld:
                now = monotonic()
                self._rests_until = now + _REST * (now - began)
                raise
        for name in _names(ops):
            self._met_at.pop(name, None)
        return answers

    def _serve(self) -> None:
        while True:
            ended = {each: self._outcome(each) for each in list(self._apart)}
            for each, outcome in ended.items():
                if outcome is not None:
                    # The event loop of this caller may be closed, while other callers still wait.
                    with contextlib.suppress(Exception):
                        self._apart.pop(each)(outcome)
            with self._changing:
                if not self._apart:
                    self._thread = None
                    return
            if not any(ended.values()):
                time.sleep(_APART_PAUSE_SECONDS)

    def _outcome(self, waiting: "_NameWaiter") -> Answers | BaseException | None:
        """Try once for a caller. Return its answers, its error, or None if it continues to wait."""
        try:
            return self._try(waiting.ops)
        except NameHeld:
            return waiting.refusal(self._shown_url) if waiting.is_over else None
        except BaseException as error:  # noqa: BLE001 - passed to the caller, which waits for it
            return error


class _NameWaiter:
    """A caller that waits for names that are held."""

    def __init__(self, ops: Sequence[AnyOp], names: Sequence[str], own: str | None) -> None:
        self.ops = ops
        self._names = names
        self._own = own
        self._seconds = HELD_SECONDS if own is None else OWN_SECONDS
        self._deadline = monotonic() + self._seconds

    @property
    def is_over(self) -> bool:
        """True if the caller has waited for its full time."""
        return monotonic() >= self._deadline

    def refusal(self, shown_url: str) -> StoreBusy:
        """Return the error that names the held name, and describes what to do."""
        others = " or another name of the same batch" if len(self._names) > 1 else ""
        message = (
            f"{shown_url}: {self._own or self._names[0]}{others} has been locked for "
            f"{self._seconds:.0f} s by an open transaction; "
        )
        if self._own is None:
            return StoreBusy(message + "commit or roll back that transaction, then retry")
        return WouldBlockItself(
            message + "if it is your own transaction, write in it with using(connection=…) or "
            "send_event(connection=…), or end it first"
        )


def _names(ops: Iterable[AnyOp]) -> list[str]:
    """Return descriptions of the keys, events and locks that the ops name."""
    names = []
    for op in ops:
        if isinstance(op, SendEvent):
            names.append(f"event {op.name!r}")
        elif isinstance(op, Enqueue) and op.key is not None:
            names.append(f"key {op.key.text!r} of task {op.task!r}")
        elif isinstance(op, RenewLock):
            names.append(f"lock {op.name!r}")
        elif isinstance(op, RenewKey):
            names.append(f"key {op.key!r} of the guard")
    return names

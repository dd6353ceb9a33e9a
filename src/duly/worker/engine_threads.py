"""Judges the threads that a worker's engine needs: whether one has ended, or hangs."""

from collections.abc import Callable, Sequence
from typing import Protocol

from duly.clock import monotonic
from duly.errors import StoreError
from duly.events import EventBus, WorkerStalled
from duly.store.protocol import Store

_WAITING_SHARE = 0.1
"""For which part of the time that a thread is in one turn one statement must have taken, so that
the thread waits for the store."""


class EngineThread(Protocol):
    """What has a thread, or several."""

    def is_alive(self) -> bool: ...


class EngineLoop(EngineThread, Protocol):
    """What does its work in turns, on a thread of its own."""

    @property
    def name(self) -> str: ...

    @property
    def turn_began_at(self) -> float | None: ...


class EngineThreads:
    """All of one worker. The thread that looks is none of them."""

    def __init__(
        self,
        store: Store,
        bus: EventBus,
        worker_id: str,
        beats_since: Callable[[], float | None],
        stalled_after: float,
        turning: Sequence[EngineLoop],
        others: Sequence[EngineThread],
    ) -> None:
        """Judge `turning` by their turns too; `others` may wait for user code for any time."""
        self._store = store
        self._bus = bus
        self._worker_id = worker_id
        self._beats_since = beats_since
        self._stalled_after = stalled_after
        self._turning = turning
        self._others = others
        self._turns: dict[str, tuple[float, float]] = {}
        """By thread: when its turn began, and for how long it has been seen in it since."""
        self._looked_at = monotonic()
        self.has_stalled = False
        """Whether a look has found a thread that hangs. It is not waited for any more."""

    def has_lost_one(self) -> bool:
        """Return whether an error that is no `Exception` has ended one of them."""
        return not all(each.is_alive() for each in (*self._turning, *self._others))

    def look(self, *, every: float) -> bool:
        """Return whether a thread hangs: it has been in one turn for `stalled_after` seconds.

        Called about as often as `every` says. Time counts only if a turn could have ended in it.
        So a longer gap between two looks does not count: the process was frozen, or a body kept
        all of its threads from running. Nor does an outage, in which beats fail as well. A thread
        that waits for the store, because that is slow or others hold a lock, does not hang.
        """
        now = monotonic()
        passed, self._looked_at = min(now - self._looked_at, 2 * every), now
        if self._beats_since() is None:
            self._turns.clear()
            return self.has_stalled
        for each in self._turning:
            began_at = each.turn_began_at
            if began_at is None:
                self._turns.pop(each.name, None)
                continue
            seen_in, seconds = self._turns.get(each.name, (None, 0.0))
            seconds = seconds + passed if seen_in == began_at else 0.0
            if seconds >= self._stalled_after and not self.has_stalled:
                if self._waits_for_the_store():
                    seconds = 0.0
                else:
                    self.has_stalled = True
                    self._bus.emit(WorkerStalled(self._worker_id, each.name, seconds))
            self._turns[each.name] = (began_at, seconds)
        return self.has_stalled

    def _waits_for_the_store(self) -> bool:
        try:
            return self._store.is_kept_waiting(_WAITING_SHARE * self._stalled_after)
        except StoreError:
            return True  # It is closed, or away: no thread can end its turn.

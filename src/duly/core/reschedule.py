"""Decides when a run is due that an operator reschedules, or why it is refused. Pure functions."""

from typing import NamedTuple

from duly.core.concurrency_limits import slot_of
from duly.core.states import SlotKind
from duly.core.time_text import utc_text

_HANDED = frozenset({SlotKind.HANDED, SlotKind.HANDED_HOLD})


class QueuedRun(NamedTuple):
    """A run that no worker runs, as far as a reschedule depends on it."""

    queue: str
    lane: str
    claim_number: int
    due_at: int
    expires_at: int | None
    waits_in: str | None
    """The step in which it sleeps, or waits for an event or for child runs."""
    now: int
    """When the run was read, on the clock of the store."""

    def due_at_after(self, delay: int | None, at: int | None) -> int:
        """Return when the run is due, given what an operator asked for.

        A run that is due already keeps its place in the queue if it should start now.
        """
        if at is not None:
            wanted = max(at, self.now)
        elif delay is not None:
            wanted = self.now + delay
        else:
            return self.due_at
        return wanted if wanted > self.now else min(self.now, self.due_at)

    def refusal(self, due_at: int) -> str | None:
        """Return why the run cannot be rescheduled to a time, or None if it can."""
        # A run that is due has waited long enough, and only waits for a worker.
        if self.waits_in is not None and max(self.due_at, due_at) > self.now:
            return f"it waits in step {self.waits_in!r}, and continues when that wait ends"
        if slot_of(self.lane) in _HANDED:
            return (
                "it was sent to the engine that carries it, and starts when a worker there gets "
                "its message"
            )
        if self.expires_at is not None and self.expires_at <= max(due_at, self.now):
            return f"it would not start before it expires, at {utc_text(self.expires_at)}"
        return None


def state_refusal(state: str) -> str:
    """Return why a run that is not queued cannot be rescheduled."""
    if state == "running":
        return "it is running; cancel it, or wait for its end"
    return f"it has ended: {state}; retry it to run it again"

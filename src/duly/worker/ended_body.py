"""What runners tell their worker."""

from typing import NamedTuple, Protocol

from duly.core.outcome import Cancelled, ErrorText, Outcome, Raised, Stopped
from duly.worker.inflight import InFlightClaim


class EndedBody(NamedTuple):
    """A body has ended."""

    held: InFlightClaim
    outcome: Outcome
    seconds: float


class EndedBodyCallback(Protocol):
    """Takes ended bodies from a runner."""

    def __call__(self, ended: list[EndedBody], *, is_free: bool = False) -> None:
        """Take them; a thread that is free has nothing else to do until more claims come."""
        ...


def classify_cancel(held: InFlightClaim, outcome: Outcome) -> Outcome:
    """Tell a cancel that was asked for from one that the body's own code brought about."""
    if not isinstance(outcome, Cancelled) or outcome.cause != "requested":
        return outcome
    if held.cancel == "stopped":
        return Stopped()
    if held.cancel is None:
        text = ErrorText("CancelledError", "the task was cancelled by its own code", "", "")
        return Raised(text, retryable=True)
    return outcome

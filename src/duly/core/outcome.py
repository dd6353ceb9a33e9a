"""How an attempt ended: a closed union, one class per way."""

from typing import NamedTuple


class ErrorText(NamedTuple):
    """An exception as text; classes are never rebuilt from it."""

    kind: str
    message: str
    traceback: str
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


class Returned(NamedTuple):
    """The body returned; `result` is the encoded value, None for None."""

    result: str | None


class Raised(NamedTuple):
    """The body raised; `after` is set when it asked for a retry at its own time."""

    error: ErrorText
    retryable: bool
    named: bool = False
    """Whether `retry_on` names this exception: the only kind a `hold` task retries."""
    after: float | None = None
    cause: str = "raised"


class TimedOut(NamedTuple):
    """The body did not end within its timeout."""

    error: ErrorText


class Snoozed(NamedTuple):
    """The body asked to be run again later, at no cost."""

    after: float


class Suspended(NamedTuple):
    """The body waits for something, and gives its slot back meanwhile; it costs nothing."""

    after: float
    """Seconds until it goes on in any case."""
    step: str


class Vanished(NamedTuple):
    """An earlier attempt was lost in the midst of a step that must not be begun twice."""

    step: str


class Refused(NamedTuple):
    """The body was not begun, for what had become of the run before: a person has to decide."""

    cause: str
    why: str


class Cancelled(NamedTuple):
    """The body gave in to a cancel request, or discarded itself."""

    cause: str
    reason: str = ""


class Stopped(NamedTuple):
    """The attempt was broken off for a reason of ours, and counts against nobody."""

    why: str = "the run was still running when the grace period ended"


class Outage(NamedTuple):
    """The store was away for longer than the body could wait; it costs no attempt."""

    error: ErrorText
    after: float = 0.0
    """Seconds until the body runs again."""


class HandedBack(NamedTuple):
    """The claim was given up before the body started."""


class Lost(NamedTuple):
    """The process of the attempt is gone or fenced off."""

    started: bool
    charged: bool
    """Whether this death can be pinned on this run: it was alone, or lost before."""
    overdue: bool = False


Outcome = (
    Returned
    | Raised
    | TimedOut
    | Snoozed
    | Suspended
    | Vanished
    | Refused
    | Cancelled
    | Stopped
    | Outage
    | HandedBack
    | Lost
)

OUTCOME_NAMES: dict[type, str] = {
    Returned: "returned",
    Raised: "raised",
    TimedOut: "timed_out",
    Snoozed: "snoozed",
    Suspended: "suspended",
    Vanished: "vanished",
    Refused: "refused",
    Cancelled: "cancelled",
    Stopped: "stopped",
    Outage: "outage",
    HandedBack: "handed_back",
    Lost: "lost",
}

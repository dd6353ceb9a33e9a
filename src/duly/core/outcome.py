"""How an attempt ended: a closed union with one class per outcome."""

from typing import NamedTuple


class ErrorText(NamedTuple):
    """An exception as text. duly never rebuilds exception objects from it."""

    kind: str
    message: str
    traceback: str
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


class Returned(NamedTuple):
    """The body returned. `result` is the encoded value, or None if the value is None."""

    result: str | None


class Raised(NamedTuple):
    """The body raised. `after` is set if the exception asked for a retry at a given time."""

    error: ErrorText
    retryable: bool
    named: bool = False
    """True if `Retry(on=…)` names this exception. A `hold` task retries no others."""
    after: float | None = None
    cause: str = "raised"


class TimedOut(NamedTuple):
    """The body did not end within its timeout."""

    error: ErrorText


class Snoozed(NamedTuple):
    """The body asked to run again later. This uses no retry."""

    after: float


class Suspended(NamedTuple):
    """The body waits and its slot is free meanwhile. This uses no retry."""

    after: float
    """Seconds until the run continues even if its wait has not ended."""
    step: str


class Vanished(NamedTuple):
    """An earlier attempt was lost during a step that must not start twice."""

    step: str


class Refused(NamedTuple):
    """The body was not started because of how an earlier attempt ended. A person must decide."""

    cause: str
    why: str


class Cancelled(NamedTuple):
    """The body obeyed a cancel request, or discarded its own run."""

    cause: str
    reason: str = ""


class Stopped(NamedTuple):
    """duly stopped the attempt for its own reasons. This uses no retry and counts as no crash."""

    why: str = "the run was still running when the grace period ended"


class Outage(NamedTuple):
    """The store was unreachable for longer than the body could wait. This uses no retry."""

    error: ErrorText
    after: float = 0.0
    """Seconds until the body runs again."""


class HandedBack(NamedTuple):
    """The worker gave the claim up before the body started."""


class Lost(NamedTuple):
    """The process of the attempt died, or lost its lease."""

    started: bool
    charged: bool
    """True if the crash can be attributed to this run: it ran alone, or was lost before."""
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

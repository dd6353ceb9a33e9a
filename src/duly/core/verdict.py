"""The verdict that follows from an outcome.

This is the pure decision whose result every settle and every recovery writes.
"""

from typing import NamedTuple, assert_never

from duly.core.concurrency_limits import is_limited, slot_of, with_slot
from duly.core.outcome import (
    Cancelled,
    ErrorText,
    HandedBack,
    Lost,
    Outage,
    Outcome,
    Raised,
    Refused,
    Returned,
    Snoozed,
    Stopped,
    Suspended,
    TimedOut,
    Vanished,
)
from duly.core.retry import NO_RETRIES, Retry
from duly.core.states import CARRIED_SLOT_KINDS, HOLD_SLOT_KINDS, SlotKind, State, requeued_lane
from duly.limits import CRASH_LIMIT


class Finish(NamedTuple):
    """The run ends here."""

    state: State
    cause: str | None = None
    result: str | None = None


class Requeue(NamedTuple):
    """The run returns to the queue, due in `after` seconds."""

    after: float
    attempt: int
    retries_used: int
    crashes: int
    lane: str
    recorded: bool = True
    """True if the run's history gets an attempt. A claim that was handed back gets none."""
    awaits: str | None = None
    """The step whose end the run waits for. If it has ended already, the run is due at once."""
    planned: bool = False
    """True if the task failed the attempt to choose when it is retried."""


Verdict = Finish | Requeue


class AttemptState(NamedTuple):
    """The fields of the run that `decide` needs."""

    attempt: int
    retries_used: int
    crashes: int
    lane: str
    cancel_requested: bool = False


class VerdictPolicy(NamedTuple):
    """The settings of the task that `decide` needs. Recovery knows only what the lane implies."""

    retry: Retry = NO_RETRIES
    lane: str | None = None
    """The lane that the task's code asks for now. None keeps the run's own lane."""


UNKNOWN_POLICY = VerdictPolicy()


def decide(run: AttemptState, outcome: Outcome, policy: VerdictPolicy, *, jitter: float) -> Verdict:
    """Return the verdict on a run, given the outcome of its attempt."""
    hold = slot_of(run.lane) in HOLD_SLOT_KINDS
    match outcome:
        case Returned(result):
            return Finish(State.SUCCEEDED, None, result)
        case Cancelled(cause):
            return Finish(State.CANCELLED, cause)
        case Vanished():
            return Finish(State.INTERRUPTED, "crashed")
        case Lost(started=True, overdue=True) | TimedOut() if hold:
            return Finish(State.INTERRUPTED, "timed_out")
        case Lost(started=True) if hold:
            return Finish(State.INTERRUPTED, "crashed")
        case Stopped() if hold:
            return Finish(State.INTERRUPTED, "stopped")
        case Outage() if hold:
            return Finish(State.INTERRUPTED, "outage")
        case _ if run.cancel_requested:
            return Finish(State.CANCELLED, "requested")
        case Refused(cause):
            return Finish(State.INTERRUPTED, cause)
        case HandedBack() | Lost(started=False):
            return _again(run, run.lane)
        case Stopped():
            return _again(run, run.lane, recorded=True)
        case Outage(after=after):
            return _again(run, run.lane, after=after, recorded=True)
        case Snoozed(after):
            return _again(run, with_slot(run.lane, policy.lane), after=after, recorded=True)
        case Suspended(after, step):
            again = _again(run, with_slot(run.lane, policy.lane), after=after, recorded=True)
            return again._replace(awaits=step)
        case TimedOut() | Lost(overdue=True):
            return _retry(run, policy, cause="timed_out", jitter=jitter)
        case Raised(retryable=False, cause=cause):
            return Finish(State.FAILED, cause)
        case Raised(named=False, cause=cause) if hold:
            return Finish(State.FAILED, cause)
        case Raised(after=after, cause=cause):
            return _retry(run, policy, cause=cause, jitter=jitter, after=after)
        case Lost(charged=charged):
            return _after_crash(run, charged=charged)
        case _:
            assert_never(outcome)


def _again(run: AttemptState, lane: str, *, after: float = 0.0, recorded: bool = False) -> Requeue:
    again = requeued_lane(lane)
    return Requeue(after, run.attempt, run.retries_used, run.crashes, again, recorded)


def _retry(
    run: AttemptState,
    policy: VerdictPolicy,
    *,
    cause: str,
    jitter: float,
    after: float | None = None,
) -> Verdict:
    if run.retries_used >= policy.retry.limit:
        return Finish(State.FAILED, cause)
    is_planned = after is not None
    if after is None:
        after = policy.retry.delay(run.retries_used, jitter)
    lane = requeued_lane(with_slot(run.lane, policy.lane))
    again = Requeue(after, run.attempt + 1, run.retries_used + 1, run.crashes, lane)
    return again._replace(planned=is_planned)


def _after_crash(run: AttemptState, *, charged: bool) -> Verdict:
    # Any run on the worker may have caused the first loss, so the run is queued normally. After a
    # second loss the run is executed alone, in a child process of its own. That is impossible for a
    # run that another engine carries or that counts against a limit. Such a run is charged with a
    # crash for every further loss instead.
    is_watched = run.lane not in CARRIED_SLOT_KINDS and not is_limited(run.lane)
    lost_before = run.attempt - 1 - run.retries_used > 0
    crashes = run.crashes + (charged or (lost_before and not is_watched))
    if crashes >= CRASH_LIMIT:
        return Finish(State.FAILED, "crashed")
    lane = SlotKind.SUSPECT if lost_before and is_watched else requeued_lane(run.lane)
    return Requeue(0.0, run.attempt + 1, run.retries_used, crashes, lane)


def undelivered_verdict(times: int) -> tuple[Finish, ErrorText]:
    """Return the verdict on a run that another engine was sent several times but never started."""
    message = (
        f"it was sent to its carrier {times} times, and no worker started it: check that workers "
        "of its carrier run and know its task, then retry it"
    )
    return Finish(State.FAILED, "undelivered"), ErrorText("Undelivered", message, "", "undelivered")


def describe(outcome: Outcome) -> ErrorText | None:
    """Return the error text for the record of the attempt, or None."""
    match outcome:
        case Raised(error=error) | TimedOut(error=error) | Outage(error=error):
            return error
        case Cancelled(reason=reason) if reason:
            return ErrorText("Discard", reason, "", "")
        case Vanished(step):
            message = (
                f"step {step!r} had started when its attempt was lost, and must not start twice: "
                "find out whether the step had its effect, then run `duly runs resolve ID --done` "
                "or `--rerun`"
            )
            return ErrorText("StepVanished", message, "", f"vanished {step}"[:64])
        case Refused(cause, why):
            return ErrorText("Refused", why, "", cause)
        case Lost(started=True):
            return ErrorText("Lost", "its worker process died or lost its lease", "", "lost")
        case Stopped(why):
            return ErrorText("Stopped", why, "", "stop")
        case _:
            return None

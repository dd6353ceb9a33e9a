"""Tells subscribers how attempts ended, and reports the errors of extensions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from traceback import format_exception

from duly.app import Duly
from duly.core.states import FINAL, State, tags_of_caller
from duly.core.verdict import Finish, Verdict
from duly.events import AttemptEnded, EngineFailed, Event


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt at a run, after its end was recorded."""

    run_id: str
    task: str
    queue: str
    attempt: int
    """The number of the attempt, from 1."""
    retries_used: int
    """How many retries the run had used before this attempt ended."""
    outcome: str
    """How the attempt ended: `returned`, `raised`, `timed_out`, …, as in `run.attempts()`."""
    state: State
    """The state that the run has now. If it is `queued`, there will be another attempt."""
    duration: timedelta
    """How long the task ran."""
    waited: timedelta | None
    """From when the run was due until the attempt began. None if it did not begin."""
    error: str | None
    traceback: str | None
    """The traceback of the task's exception, with secrets masked."""
    tags: Mapping[str, str]

    @property
    def is_final(self) -> bool:
        """True if the run has ended."""
        return self.state in FINAL


def on_attempt_end(app: Duly, subscriber: Callable[[EndedAttempt], object]) -> None:
    """Call `subscriber` for each attempt whose end this process records.

    It is called after the commit, in a thread of the worker that ran the attempt. The worker waits
    for it, so slow work belongs into another thread. An exception in it is reported by
    `threading.excepthook`, and affects neither the run nor other subscribers. If the process dies
    first, there is no call.
    """

    def take(event: Event) -> None:
        if isinstance(event, AttemptEnded) and _is_recorded(event.verdict):
            subscriber(_ended(event))

    app.bus.subscribe(take)


def report_error(app: Duly, what: str, error: BaseException) -> None:
    """Log an unexpected error in an extension, with its traceback.

    `what` names the part that failed. It should continue.
    """
    app.bus.emit(EngineFailed(what, repr(error), "".join(format_exception(error))))


def _is_recorded(verdict: Verdict) -> bool:
    """Return whether the run's history has this attempt. It omits claims that were handed back."""
    return isinstance(verdict, Finish) or verdict.recorded


def _ended(event: AttemptEnded) -> EndedAttempt:
    claim, verdict = event.claim, event.verdict
    return EndedAttempt(
        run_id=claim.run_id,
        task=claim.task,
        queue=claim.queue,
        attempt=claim.attempt,
        retries_used=claim.retries_used,
        outcome=event.outcome,
        state=verdict.state if isinstance(verdict, Finish) else State.QUEUED,
        duration=timedelta(microseconds=event.elapsed),
        waited=None if event.waited is None else timedelta(microseconds=event.waited),
        error=event.error,
        traceback=event.traceback,
        tags=tags_of_caller(claim.tags),
    )

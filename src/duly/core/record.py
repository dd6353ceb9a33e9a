"""The claims and other records that the store returns. Times are UTC microseconds."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])


def fast_constructor(kind: type[T]) -> Callable[[Iterable[Any]], T]:
    """Return a fast constructor that builds a NamedTuple from an iterable of all its fields.

    It takes a third of the constructor's time, but does not check the number of fields.
    """
    return partial(tuple.__new__, kind)


class Claim(NamedTuple):
    """A worker's right to run one attempt, with everything needed to run it."""

    run_id: str
    claim_number: int
    task: str
    queue: str
    lane: str
    priority: int
    due_at: int
    attempt: int
    retries_used: int
    crashes: int
    generation: int
    keyed: bool
    tags: str | None
    arguments: str
    claimed_at: int = 0


class Claims(list[Claim]):
    """The claims that one claim statement returned."""

    limit: str | None = None
    """The last limit that the statement checked. None if it met or checked no limits."""
    has_more_limits: bool = False
    """True if there may be limits that were not checked. One statement checks a bounded number."""
    is_cut: bool = False
    """True if the arguments reached `TRANSACTION_BYTES`, so claimable runs may be left."""


class ClaimedRun(NamedTuple):
    """A running run, with the fields that recovery needs."""

    run_id: str
    claim_number: int
    task: str
    lane: str
    attempt: int
    retries_used: int
    crashes: int
    keyed: bool
    cancel_requested: bool
    elapsed: int
    """Microseconds since the run was claimed."""


class RunRecord(NamedTuple):
    """A run as stored."""

    id: str
    task: str
    queue: str
    lane: str
    state: str
    cause: str | None
    priority: int
    generation: int
    claim_number: int
    attempt: int
    retries_used: int
    crashes: int
    created_at: int
    due_at: int
    expires_at: int | None
    claimed_at: int | None
    finished_at: int | None
    worker_id: str | None
    cancel_requested: bool
    parked: str | None
    key: str | None
    tags: str | None
    arguments: str
    result: str | None
    error: str | None
    traceback: str | None
    fingerprint: str | None
    progress: float | None
    progress_text: str | None


class AttemptRecord(NamedTuple):
    """One claim of a run that has ended, and its outcome."""

    run_id: str
    claim_number: int
    generation: int
    attempt: int
    outcome: str
    worker_id: str | None
    started_at: int | None
    finished_at: int
    error: str | None
    traceback: str | None


class LogLine(NamedTuple):
    """One line that a task logged through its context."""

    run_id: str
    claim_number: int
    at: int
    level: str
    message: str


class AuditEntry(NamedTuple):
    """One entry of the audit log: what an operator did, to what, when and why."""

    at: int
    actor: str
    act: str
    subject: str
    reason: str
    number: int = 0
    """Grows with every entry. Pages of a listing continue from it."""


class BulkAction(NamedTuple):
    """An operator action on many runs, and its progress."""

    id: str
    verb: str
    """retry, discard or cancel."""
    selection: str
    """The selected runs, as JSON."""
    actor: str
    reason: str
    total: int
    """The number of selected runs when the action was requested."""
    done: int
    skipped: int
    refused: str
    """Why some skipped runs were not retried, as JSON list: other live runs have their keys."""
    reached: str | None
    """The id of the last run that was processed. Runs are processed newest first."""
    owner: str
    """The name of the process that works on the action."""
    created_at: int
    renewed_at: int
    """The time of that process's last heartbeat."""
    ended_at: int | None
    error: str | None

    @property
    def share(self) -> float:
        """The share of the runs that were processed, in percent."""
        if self.ended_at is not None and self.error is None:
            return 100.0
        return min(100.0, 100 * (self.done + self.skipped) / max(1, self.total))


class WorkerRecord(NamedTuple):
    """A worker process as stored."""

    id: str
    state: str
    """live, stopped, dead (a worker recovered it), or silent (no heartbeat for a whole lease)."""
    host: str
    pid: int
    started_at: int
    seen_at: int
    stopped_at: int | None
    lease_seconds: float
    queues: str
    tasks: str
    running: int
    version: str | None = None
    """The version of the application, if it reports one."""
    engine: str | None = None
    """The versions of duly and Python. None for a worker of a duly that did not record them."""

    def as_of(self, now: int) -> "WorkerRecord":
        """Return the record, with state silent if its lease expired and nothing recovered it."""
        is_silent = self.state == "live" and now - self.seen_at > self.lease_seconds * 1_000_000
        return self._replace(state="silent") if is_silent else self

    @property
    def has_ended(self) -> bool:
        """True if the worker stopped or was recovered. A silent worker may still be alive."""
        return self.state in {"dead", "stopped"}


class QueueRecord(NamedTuple):
    """A queue that has live runs or was paused. Its counts stop at a cap."""

    name: str
    paused: bool
    ready: int
    waiting: int
    running: int
    limit: int | None = None
    """The maximum number of its runs that may be running at once, over all workers."""
    max_size: int | None = None
    """The maximum number of its runs that may wait for workers."""


class ReadyRun(NamedTuple):
    """The run of a queue that has been due for the longest time."""

    queue: str
    run_id: str
    due_at: int
    task: str
    lane: str


class LimitHolder(NamedTuple):
    """A running run that counts against a limit."""

    limit: str
    """The kind of limit: "queue" or "task"."""
    capacity: int | None
    """The capacity of a queue limit. None for a task limit, whose capacity is set in code."""
    run_id: str
    worker_id: str


class DeadLetterGroup(NamedTuple):
    """Dead letters of one task that share an error fingerprint."""

    task: str
    fingerprint: str
    count: int  # type: ignore[assignment] # no caller uses tuple.count on a group
    error: str | None
    first_at: int
    last_at: int
    sample_id: str
    engine: str | None = None
    """The engine whose messages these dead letters are. None for runs of duly."""


class UnregisteredRuns(NamedTuple):
    """Due runs, counted up to a cap, of one task that no live worker registers, in one queue."""

    task: str
    queue: str
    runs: int


class FinishedRunsSummary(NamedTuple):
    """The runs of one queue in one final state, among the most recently finished runs."""

    queue: str
    state: str
    runs: int
    begun: int
    """The number of these runs that had started."""
    elapsed: int
    """The total duration of their last attempts, in microseconds."""


class FinishedRunsByTime(NamedTuple):
    """The number of runs that reached one final state in one interval of time."""

    at: int
    """The start of the interval."""
    state: str
    runs: int
    elapsed: int
    """The total duration of the runs' last attempts, in microseconds."""
    delay: int
    """The total time between due and the start of those attempts, in microseconds."""


class FinishedRunsByTask(NamedTuple):
    """Runs of one task and queue with the same final state and similar durations and wait times."""

    task: str
    queue: str
    state: str
    took: int
    """Upper bound of the milliseconds from first start to end: one of `core.histogram_bounds`."""
    waited: int
    """Upper bound of the milliseconds between due and start, from the same bounds."""
    runs: int
    elapsed: int
    """The total duration of the last attempts, measured from their claims."""
    delay: int
    lasted: int = 0
    """The total time from first start to end, in microseconds."""


class StepRecord(NamedTuple):
    """A step of a run, or another thing the run waits for."""

    run_id: str
    name: str
    kind: str
    """step, sleep, wait or gather; or epoch, which counts the retries with fresh keys."""
    done: bool
    awaited: str | None
    """The name of an event, or the ids of child runs as JSON. For a step, the enclosing step."""
    wake_at: int | None
    result: str | None
    claim_number: int
    began_at: int
    ended_at: int | None


class ScheduleRecord(NamedTuple):
    """A schedule as stored."""

    name: str
    version: int
    """Grows with every change to the trigger, the rules or the task call."""
    source: str
    """"code" if the code defines the schedule, "runtime" if it was added at run time."""
    place: str
    """The place in the code, or the person, that defined it."""
    task: str
    queue: str
    lane: str
    priority: int
    arguments: str
    expires: int | None
    """Microseconds after which a run that has not started expires."""
    trigger: str
    rules: str
    state: str
    reason: str | None
    """Why the schedule is not active."""
    next_at: int | None
    """The next due instant. All earlier instants are accounted for."""
    look_at: int | None
    waiting: int
    """The number of firings that wait for the last run to end."""
    last_run_id: str | None
    created_at: int
    updated_at: int


class FiringRecord(NamedTuple):
    """The outcome of one due instant, or of several consecutive ones skipped for one reason."""

    schedule: str
    instant: int
    last_instant: int
    row: int
    """The number of instants, from the first to the last."""
    version: int
    outcome: str
    reason: str | None
    run_id: str | None
    fired_at: int
    run_state: str | None = None
    """The state of its run in a list of firings. None if it has no run, or the run was deleted."""


class OpenTransaction(NamedTuple):
    """The oldest transaction that keeps dead rows from being removed, and its session."""

    pid: int
    user: str
    application: str
    host: str
    seconds: float
    slows_claims: bool
    """True if claims without floors would be slow because of the number of dead rows."""

    def is_too_long(self) -> bool:
        """Return whether it has been open for too long, or for long while claims are slow."""
        return self.seconds > (_SLOWING_SECONDS if self.slows_claims else _LONG_SECONDS)

    def session(self) -> str:
        """Return a description of the session."""
        words = f"session {self.pid} of user {self.user!r} from {self.host}"
        return f"{words} (application_name {self.application!r})" if self.application else words


_LONG_SECONDS = 300
_SLOWING_SECONDS = 10


class LockRecord(NamedTuple):
    """A lock that is held."""

    name: str
    holder: str
    """The name that the holder gave, or by default the user and host of its process."""
    fence: int
    left: int
    """Microseconds until the lock expires, unless it is renewed."""

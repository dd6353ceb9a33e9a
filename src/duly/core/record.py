"""What the store hands out: claims to run and records to look at. Times are UTC microseconds."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])


def fast_constructor(kind: type[T]) -> Callable[[Iterable[Any]], T]:
    """Return what makes a NamedTuple of all its fields, in a third of its constructor's time.

    For the few that are made for every run; the fields are not counted.
    """
    return partial(tuple.__new__, kind)


class Claim(NamedTuple):
    """A worker's right to one attempt, with all it needs to run it."""

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


class Claims(list[Claim]):
    """What a claim took."""

    limit: str | None = None
    """Where it met limits: the last one that it looked at; None if it met none, or did not look."""
    has_more_limits: bool = False
    """Whether there may be limits that it did not come to, since it looks at so many at once."""
    is_cut: bool = False
    """Whether its arguments reached `TRANSACTION_BYTES`, so that it may have left runs."""


class ClaimedRun(NamedTuple):
    """A running run as recovery sees it."""

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
    """Microseconds since it was claimed."""


class RunRecord(NamedTuple):
    """A run as it stands in the store."""

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
    """One claim of a run that came to an end, and how."""

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
    """One line a task logged through its context."""

    run_id: str
    claim_number: int
    at: int
    level: str
    message: str


class AuditEntry(NamedTuple):
    """What an operator did, to what, when and why."""

    at: int
    actor: str
    act: str
    subject: str
    reason: str
    number: int = 0
    """Grows with every act; continues a list of them."""


class BulkAction(NamedTuple):
    """An act on many runs, and how far it is."""

    id: str
    verb: str
    """retry, discard or cancel."""
    selection: str
    """Which runs, as JSON."""
    actor: str
    reason: str
    total: int
    """How many runs there were when it was asked for."""
    done: int
    skipped: int
    refused: str
    """Why some of the skipped were not retried, as a JSON list: another live run has their key."""
    reached: str | None
    """The last run that was looked at, newest first."""
    owner: str
    """Names the process that works on it."""
    created_at: int
    renewed_at: int
    """When that process was last heard of."""
    ended_at: int | None
    error: str | None

    @property
    def share(self) -> float:
        """How much of it is done, in hundredths."""
        if self.ended_at is not None and self.error is None:
            return 100.0
        return min(100.0, 100 * (self.done + self.skipped) / max(1, self.total))


class WorkerRecord(NamedTuple):
    """A worker process as the store knows it."""

    id: str
    state: str
    """live; silent if it was not seen for a whole lease; dead if it was recovered; or stopped."""
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
    """Of the application, if it tells one."""
    engine: str | None = None
    """The versions of duly and Python; None of a worker from before they were noted."""

    def as_of(self, now: int) -> "WorkerRecord":
        """Return it as silent if its lease is over and no worker has recovered it yet."""
        is_silent = self.state == "live" and now - self.seen_at > self.lease_seconds * 1_000_000
        return self._replace(state="silent") if is_silent else self

    @property
    def has_ended(self) -> bool:
        """Whether it has stopped, or was recovered; one that is silent may beat again."""
        return self.state in {"dead", "stopped"}


class QueueRecord(NamedTuple):
    """A queue that has live runs or was paused; counts stop at a cap."""

    name: str
    paused: bool
    ready: int
    waiting: int
    running: int
    limit: int | None = None
    """How many of its runs may be running at once, over all workers."""
    max_size: int | None = None
    """How many of its runs may wait for workers."""


class ReadyRun(NamedTuple):
    """The run of a queue that has been due for longest, and since when."""

    queue: str
    run_id: str
    due_at: int
    task: str
    lane: str


class LimitHolder(NamedTuple):
    """A run that is running under a limit."""

    limit: str
    """Whose: "queue" or "task"."""
    capacity: int | None
    """Of a queue; what a task's is, its code says."""
    run_id: str
    worker_id: str


class DeadLetterGroup(NamedTuple):
    """Dead letters of one task that share an error fingerprint."""

    task: str
    fingerprint: str
    count: int  # type: ignore[assignment]  # nobody counts the fields of a group
    error: str | None
    first_at: int
    last_at: int
    sample_id: str
    engine: str | None = None
    """Whose messages they are letters of; None for runs."""


class UnregisteredRuns(NamedTuple):
    """Due runs of a task that no live worker registers, in one queue; counted up to a cap."""

    task: str
    queue: str
    runs: int


class FinishedRunsSummary(NamedTuple):
    """Finished runs of one queue that came to one end, among the newest of all."""

    queue: str
    state: str
    runs: int
    begun: int
    """How many of them had begun."""
    elapsed: int
    """How long the last attempts of those took, all together, in microseconds."""


class FinishedRunsByTime(NamedTuple):
    """How many runs came to one end, in one piece of time."""

    at: int
    """When that piece began."""
    state: str
    runs: int
    elapsed: int
    """How long their last attempts took, all together, in microseconds."""
    delay: int
    """How long they had been due before that, all together."""


class FinishedRunsByTask(NamedTuple):
    """How many runs of a task and queue came to one end, about as fast and after such a wait."""

    task: str
    queue: str
    state: str
    took: int
    """Milliseconds that they did not exceed from first start to end: one of `core.bounds`."""
    waited: int
    """Milliseconds for which they had been due, likewise."""
    runs: int
    elapsed: int
    """How long their last attempts took, since they were claimed, all together."""
    delay: int
    lasted: int = 0
    """How long they took from first start to end, all together, in microseconds."""


class StepRecord(NamedTuple):
    """A step of a run, or something that it waits for."""

    run_id: str
    name: str
    kind: str
    """Of what kind: step, sleep, wait, gather; or epoch, which counts redrives with fresh keys."""
    done: bool
    awaited: str | None
    """The name of an event, or the ids of child runs as JSON; of a step, the one it lies in."""
    wake_at: int | None
    result: str | None
    claim_number: int
    began_at: int
    ended_at: int | None


class ScheduleRecord(NamedTuple):
    """A schedule as it stands in the store."""

    name: str
    version: int
    """Grows with every change of what it fires, or when."""
    source: str
    """Whether "code" defines it, or "runtime" did."""
    place: str
    """Where in the code, or who."""
    task: str
    queue: str
    lane: str
    priority: int
    arguments: str
    expires: int | None
    """Microseconds after which a run that has not started is of no use any more."""
    trigger: str
    rules: str
    state: str
    reason: str | None
    """Why it is not active."""
    next_at: int | None
    """The next due instant; every one before it is accounted for."""
    look_at: int | None
    waiting: int
    """Firings that wait for the last run to end."""
    last_run_id: str | None
    created_at: int
    updated_at: int


class FiringRecord(NamedTuple):
    """What became of a due instant, or of a row of them that were skipped for one reason."""

    schedule: str
    instant: int
    last_instant: int
    row: int
    """How many instants, from the first to the last."""
    version: int
    outcome: str
    reason: str | None
    run_id: str | None
    fired_at: int
    run_state: str | None = None
    """How its run stands in a list of firings; None if there is no run, or no longer."""


class OpenTransaction(NamedTuple):
    """The oldest transaction that keeps dead rows from being removed, and the session it is in."""

    pid: int
    user: str
    application: str
    host: str
    seconds: float
    slows_claims: bool
    """Whether dead rows are so many that claims would be slow without floors."""

    def is_too_long(self) -> bool:
        """Return whether it has been open for too long, or for long while claims are slow."""
        return self.seconds > (_SLOWING_SECONDS if self.slows_claims else _LONG_SECONDS)

    def session(self) -> str:
        """Return words that name the session."""
        words = f"session {self.pid} of user {self.user!r} from {self.host}"
        return f"{words} (application_name {self.application!r})" if self.application else words


_LONG_SECONDS = 300
_SLOWING_SECONDS = 10


class LockRecord(NamedTuple):
    """A lock that somebody holds."""

    name: str
    holder: str
    """Who asked for it: the user and the host of the process, unless it said otherwise."""
    fence: int
    left: int
    """Microseconds until it is free, unless it is renewed before."""

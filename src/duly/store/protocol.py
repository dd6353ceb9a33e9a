"""What the engine asks of a store: ops that write, queries that read."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from duly.clock import MICROSECONDS
from duly.core.audit import AuditFinding, RunTotals
from duly.core.diagnosis import Diagnosis
from duly.core.record import (
    AttemptRecord,
    AuditEntry,
    BulkAction,
    DeadLetterGroup,
    FinishedRunsByTask,
    FinishedRunsByTime,
    FinishedRunsSummary,
    FiringRecord,
    LimitHolder,
    LockRecord,
    LogLine,
    OpenTransaction,
    QueueRecord,
    ReadyRun,
    RunRecord,
    ScheduleRecord,
    StepRecord,
    UnregisteredRuns,
    WorkerRecord,
)
from duly.errors import TransactionTooLong
from duly.limits import SKEW_SECONDS
from duly.store.heartbeats import Heartbeats, LivenessHandle
from duly.store.hints import HintChannel
from duly.store.ops import Accepted, AddLogs, Enqueue, Op, SetProgress, Settle, Settled
from duly.store.schema import MigratableStore
from duly.store.step_ops import EndStep, SendEvent

if TYPE_CHECKING:  # Programs that only enqueue need not pay for what the guard is made of.
    from pathlib import Path

    from duly.core.schedule_plans import DueSchedule
    from duly.store.guard_ops import DeadLetterRecord, GuardedKey, GuardOp


class RunFilter(NamedTuple):
    """Which runs to list; None means any."""

    states: tuple[str, ...] = ()
    task: str | None = None
    queue: str | None = None
    tag: tuple[str, str | None] | None = None
    """A name and a value; of a list of runs, the value may be None for any."""
    fingerprint: str | None = None
    since: int | None = None
    before: str | None = None
    """Cursor: only runs with a smaller id, that is, older ones."""
    limit: int = 50
    scan: int | None = None
    """Look among so many at most, where no index tells which ones fit."""

    def may_have_older(self, created_at: int | None) -> bool:
        """Say whether any could fit that are older than one that was made then."""
        if self.since is None or created_at is None:
            return True
        # Runs are in the order of their ids, which their makers' clocks give.
        return created_at >= self.since - SKEW_SECONDS * MICROSECONDS


class Peek(NamedTuple):
    """What an idle worker wants to know, in one cheap statement."""

    ready: bool
    suspect: bool
    """Whether a run waits for a one-slot child."""
    parked: bool
    next_due_in: int | None
    """Microseconds until a waiting run becomes due or a queued one expires."""
    next_fire_in: int | None
    """Microseconds until a schedule must be looked at."""
    awaits: bool
    """Whether some run waits for an event or for child runs."""
    carried: bool
    """Whether some run is to be handed over to another engine by whoever asks."""
    strayed: bool
    """Whether a task of which some are, or were handed over, is none that whoever asks does."""
    next_stale_in: int | None
    """Microseconds until whoever asks is to hand one over again."""
    limited: bool
    """Whether a run under a limit of its task is ready; it may be one that cannot be had now."""


class ScheduleFilter(NamedTuple):
    """Which schedules to list, by name."""

    name: str | None = None
    after: str = ""
    """Cursor: only names behind this one."""
    removed: bool = False
    source: str | None = None
    limit: int = 200
    state: str | None = None


class DeadLetterFilter(NamedTuple):
    """Which dead letters of other engines to list, newest first; None means any."""

    id: str | None = None
    state: str | None = "open"
    engine: str | None = None
    task: str | None = None
    cause: str | None = None
    since: int | None = None
    before: str | None = None
    """Cursor: only letters with a smaller id, that is, older ones."""
    limit: int = 50
    namespace: str | None = None
    fingerprint: str | None = None


class ExternalStatement(NamedTuple):
    """SQL for a connection that is not ours."""

    dialect: str
    """What the database has to be: "sqlite" or "postgresql"."""
    sql: str
    parameters: Mapping[str, Any]


Row = Sequence[Any] | None
A = TypeVar("A")
Dialogue = Generator[ExternalStatement, Row, A]
"""Yields the statements of a write one after the other and is sent the first row of each."""


class QueueCapacity(Protocol):
    """What a process knows of how full queues are."""

    def fit(self, ops: Sequence[Enqueue]) -> bool:
        """Say whether runs are known to fit, without a look; then they count from now on."""
        ...

    def forget(self) -> None:
        """Look anew: somebody has changed a queue."""
        ...


class Inspector(Protocol):
    """Reads, each one statement, so that a run on its way to history is never found nowhere."""

    def get_run(self, run_id: str) -> RunRecord | None: ...
    def get_states(self, run_ids: Sequence[str]) -> dict[str, str]: ...
    def list_runs(self, which: RunFilter) -> list[RunRecord]: ...
    def list_attempts(self, run_id: str) -> list[AttemptRecord]: ...
    def first_starts(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Return when runs were first started in their generation, if they had earlier attempts."""
        ...

    def list_steps(self, run_id: str) -> list[StepRecord]: ...
    def list_logs(self, run_id: str, limit: int) -> list[LogLine]: ...
    def reach_of(self, which: RunFilter) -> str | None:
        """Return the last run that a list with a `scan` looked at; None if no older one fits."""
        ...

    def find_by_key(self, key: str) -> list[str]:
        """Return the runs that have a key, of whichever tasks."""
        ...

    def list_audit_entries(
        self, subject: str | None, limit: int, before: int | None = None
    ) -> list[AuditEntry]: ...
    def get_bulk(self, act_id: str) -> BulkAction | None: ...
    def has_silent_bulk(self, lease: int) -> bool:
        """Return whether the process of an act on many runs has been silent for so long."""
        ...

    def has_audit_entry(self, subject: str) -> bool:
        """Return whether an act on exactly this subject was recorded."""
        ...

    def count_ends(self, since: int, step: int) -> list[FinishedRunsByTime]:
        """Return how many runs ended since then, by their present state, in pieces of `step` µs."""
        ...

    def count_ends_of_tasks(self, since: int) -> list[FinishedRunsByTask]:
        """Return how many runs ended since then, by task, queue and present state."""
        ...

    def count_every_end_of_tasks(self, since: int) -> list[FinishedRunsByTask]:
        """Return likewise, but with the ends that operators took back: a sum that only grows."""
        ...

    def count_retries(self, since: int, step: int) -> list[FinishedRunsByTime]:
        """Return how many attempts failed and were followed by another one, by time."""
        ...

    def count_retries_of_tasks(self, since: int) -> list[FinishedRunsByTask]:
        """Return how many attempts failed and were followed by another one, by task and queue."""
        ...

    def list_oldest_ready(self) -> list[ReadyRun]:
        """Return the run of each queue that is not paused that has been due for longest."""
        ...

    def find_oldest_transaction(self) -> OpenTransaction | None: ...
    def list_workers(self) -> list[WorkerRecord]: ...
    def get_worker(self, worker_id: str) -> WorkerRecord | None: ...
    def list_queues(self) -> list[QueueRecord]: ...
    def is_paused(self, queue: str) -> bool: ...
    def list_holders(self, run: RunRecord, other_names: tuple[str, ...] = ()) -> list[LimitHolder]:
        """Return the runs that hold the limits of a run, under all names of its task."""
        ...

    def list_unregistered(self) -> list[UnregisteredRuns]:
        """Return the runs that are parked because no live worker registers their tasks."""
        ...

    def audit(self, limit: int) -> Iterator[AuditFinding]:
        """Find what must never be, up to so many of each kind; holds on a live database."""
        ...

    def count_runs(self) -> RunTotals:
        """Count all runs, by where they are; reads all of them."""
        ...

    def check_integrity(self) -> list[Diagnosis]:
        """Have the engine check its own files, as far as it can."""
        ...

    def back_up(self, file: "Path") -> None:
        """Write a copy of the database as it stands to a file that is not there yet."""
        ...

    def diagnose(self) -> list[Diagnosis]:
        """Say how the engine is and how it is set up."""
        ...

    def count_dead(self) -> int:
        """Count dead letters of whatever age, up to one more than DEAD_COUNT_CAP."""
        ...

    def count_interrupted(self) -> int:
        """Count interrupted runs among so many dead letters, the newest."""
        ...

    def list_dead_groups(self, which: RunFilter) -> list[DeadLetterGroup]: ...
    def summarise(self) -> list[FinishedRunsSummary]:
        """Return what became of the newest finished runs, by queue and state."""
        ...

    def list_cancel_requests(self, worker_id: str) -> list[str]: ...
    def list_schedules(self, which: ScheduleFilter) -> list[ScheduleRecord]: ...
    def list_next_schedules(self, limit: int) -> list[ScheduleRecord]:
        """Return active schedules, the one that is due first, or has been for longest, first."""
        ...

    def list_due_schedules(
        self, limit: int, *, at_least: int, less_than: int
    ) -> "list[DueSchedule]":
        """Return schedules whose time to be looked at is over by that many microseconds."""
        ...

    def list_schedules_ahead(self, limit: int, *, by: int) -> list[str]:
        """Return schedules that have fired more than that many microseconds after now."""
        ...

    def list_firings(self, schedule: str, before: int, limit: int) -> list[FiringRecord]: ...
    def columns_of(self, table: str) -> frozenset[str]:
        """Return the columns of a table of somebody else's; none if there is no such table.

        On PostgreSQL it must be of the login or of the owner of duly's tables: others may plant it.
        """
        ...

    def list_locks(self, after: str, limit: int) -> list[LockRecord]:
        """Return the locks that somebody holds, by name, behind one."""
        ...

    def get_key(self, key: str) -> "GuardedKey | None": ...
    def list_dead_letters(self, which: DeadLetterFilter) -> "list[DeadLetterRecord]": ...
    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]: ...
    def peek(self, carried: Sequence[str] = ()) -> Peek:
        """Look whether there is something to do, for one who hands over these tasks."""
        ...

    def now(self) -> int: ...


class Ledger(Protocol):
    """What the guard needs; every store is one, and Redis can be."""

    shown_url: str
    notices: list[str]

    def apply(self, ops: "Sequence[GuardOp]") -> list[Any]:
        """Write the ops, each whole or not at all, and return their answers, in order."""
        ...

    def get_key(self, key: str) -> "GuardedKey | None": ...
    def list_dead_letters(self, which: DeadLetterFilter) -> "list[DeadLetterRecord]": ...
    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]: ...
    def close(self) -> None: ...


class TaskTransaction(Protocol):
    """A transaction in the store's database whose writes commit with one run's completion."""

    too_long: TransactionTooLong | None
    """Why it was rolled back in the midst of its body, if it was for that."""

    @property
    def is_lost(self) -> bool:
        """Whether the connection was lost while the transaction was open."""
        ...

    @property
    def connection(self) -> Any: ...  # noqa: ANN401 - the driver's own connection, for the user
    def settle_and_commit(self, op: Settle, words: Sequence[AddLogs | SetProgress] = ()) -> Settled:
        """Write what the body has said, and the completion, and commit all of it, or nothing."""
        ...

    def record(self, op: EndStep) -> bool:
        """Write down what a step came to, as a part of the transaction."""
        ...

    def record_and_commit(self, op: EndStep) -> bool:
        """Write down what a step came to, and end the transaction with it."""
        ...

    def commit(self) -> None:
        """End the transaction with what was written on its connection, as a part of no run."""
        ...

    def rollback(self) -> None: ...


class FailingWrites(NamedTuple):
    """When (monotonic) the first and the last of the writes failed that all failed, and why."""

    since: float
    until: float
    reason: str


class Store(Inspector, HintChannel, MigratableStore, Protocol):
    """One open database."""

    url: str
    has_one_writer: bool
    """Whether all writes queue up behind each other, so that a claim best rides on a settle."""
    shown_url: str
    """Safe to print: the absolute path, or the address with its password masked."""
    notices: list[str]
    """What people should know about this database before they rely on it."""

    def apply(self, ops: Sequence[Op]) -> list[Any]:
        """Write the ops and return their answers, in order."""
        ...

    def submit(self, ops: Sequence[Op], done: Callable[[list[Any] | BaseException], None]) -> None:
        """Write the ops from the committer's own thread and call `done` there."""
        ...

    def can_write_now(self) -> bool: ...
    def is_kept_waiting(self, seconds: float) -> bool: ...
    def failing_writes(self) -> FailingWrites | None:
        """Return how long all writes have failed on fresh sessions; None if one was answered."""
        ...

    def task_transaction(self, seconds: float | None = None) -> TaskTransaction:
        """Return a transaction for the body of a run, open for at most so long; None is default."""
        ...

    def live(self, worker_id: str) -> "LivenessHandle":
        """Show that this worker lives; called before it registers, by its own process."""
        ...

    def heartbeats(self) -> Heartbeats: ...
    @property
    def queue_capacity(self) -> QueueCapacity:
        """What this process knows of how full queues are."""
        ...

    def check_queue_capacity(self, ops: Sequence[Enqueue]) -> None:
        """Raise QueueFull if runs do not fit into their queues, as far as is known."""
        ...

    def enqueue_on_connection(self, op: Enqueue, *, hint: bool) -> Dialogue[Accepted]:
        """Accept a run on a connection that is not ours; it exists if its transaction commits.

        With `hint` that commit tells the workers, where the database can do it.
        """
        ...

    def send_on_connection(self, op: SendEvent, *, hint: bool) -> Dialogue[bool]:
        """Send an event on a connection that is not ours; it is sent if its transaction commits."""
        ...

    def close(self) -> None: ...

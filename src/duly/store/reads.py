"""The reads of a store: filters, and the protocol that every store implements."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

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
from duly.limits import SKEW_SECONDS

if TYPE_CHECKING:  # Programs that only enqueue need not pay for what the guard is made of.
    from pathlib import Path

    from duly.core.schedule_plans import DueSchedule
    from duly.store.ops.guard import DeadLetterRecord, GuardedKey


class RunFilter(NamedTuple):
    """The runs to list. None means any."""

    states: tuple[str, ...] = ()
    task: str | None = None
    queue: str | None = None
    tag: tuple[str, str | None] | None = None
    """A name and a value. In a list of runs the value may be None, for any value."""
    fingerprint: str | None = None
    since: int | None = None
    before: str | None = None
    """Cursor: only runs with a smaller id, which are older."""
    limit: int = 50
    scan: int | None = None
    """The maximum number of runs to check if no index can apply the filter."""

    def may_have_older(self, created_at: int | None) -> bool:
        """Return whether a run could match that is older than one created at this time."""
        if self.since is None or created_at is None:
            return True
        # Runs are in the order of their ids, which contain the time of the clocks that made them.
        return created_at >= self.since - SKEW_SECONDS * MICROSECONDS


class Peek(NamedTuple):
    """Whether an idle worker has something to do, and when it will have."""

    ready: bool
    suspect: bool
    """Whether a run waits for a one-slot child process."""
    parked: bool
    next_due_in: int | None
    """Microseconds until a waiting run becomes due or a queued one expires."""
    next_fire_in: int | None
    """Microseconds until a schedule must be looked at."""
    awaits: bool
    """Whether a run waits for an event or for child runs."""
    carried: bool
    """Whether this worker should hand over a run to another engine."""
    strayed: bool
    """Whether another engine has, or waits for, runs of a task that this worker does not carry."""
    next_stale_in: int | None
    """Microseconds until this worker should hand over a run again."""
    limited: bool
    """Whether a run under a limit of its task is ready. The limit may be full."""


class ScheduleFilter(NamedTuple):
    """The schedules to list, by name."""

    name: str | None = None
    after: str = ""
    """Cursor: only names after this one."""
    removed: bool = False
    source: str | None = None
    limit: int = 200
    state: str | None = None


class DeadLetterFilter(NamedTuple):
    """The dead letters of other engines to list, newest first. None means any."""

    id: str | None = None
    state: str | None = "open"
    engine: str | None = None
    task: str | None = None
    cause: str | None = None
    since: int | None = None
    before: str | None = None
    """Cursor: only dead letters with a smaller id, which are older."""
    limit: int = 50
    namespace: str | None = None
    fingerprint: str | None = None


class Inspector(Protocol):
    """The reads of a store.

    Each is one statement, because a run that moves between two tables could be in neither of them
    for two statements.
    """

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
        """Return the last run that a list with a `scan` read. None if no older run fits."""
        ...

    def find_by_key(self, key: str) -> list[str]:
        """Return the runs that have a key, of all tasks."""
        ...

    def list_audit_entries(
        self, subject: str | None, limit: int, before: int | None = None
    ) -> list[AuditEntry]: ...
    def get_bulk(self, act_id: str) -> BulkAction | None: ...
    def has_silent_bulk(self, lease: int) -> bool:
        """Return whether a bulk action was not renewed for a whole lease, in microseconds."""
        ...

    def has_audit_entry(self, subject: str) -> bool:
        """Return whether an action on exactly this subject was recorded."""
        ...

    def count_ends(self, since: int, step: int) -> list[FinishedRunsByTime]:
        """Count the runs that ended since then by their present state, per `step` microseconds."""
        ...

    def count_ends_of_tasks(self, since: int) -> list[FinishedRunsByTask]:
        """Count the runs that ended since then by task, queue and present state."""
        ...

    def count_every_end_of_tasks(self, since: int) -> list[FinishedRunsByTask]:
        """Count the same runs, and the ends that operators took back, so that counts only grow."""
        ...

    def count_retries(self, since: int, step: int) -> list[FinishedRunsByTime]:
        """Count the attempts that failed and were followed by another one, per `step`."""
        ...

    def count_retries_of_tasks(self, since: int) -> list[FinishedRunsByTask]:
        """Count the attempts that failed and were followed by another one, by task and queue."""
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
        """Find broken invariants, up to `limit` of each kind. Workers may run meanwhile."""
        ...

    def count_runs(self) -> RunTotals:
        """Count all runs by state, which reads all of them."""
        ...

    def check_integrity(self) -> list[Diagnosis]:
        """Return the result of the database's own checks of its files."""
        ...

    def back_up(self, file: "Path") -> None:
        """Write a copy of the database as it is now to a new file."""
        ...

    def diagnose(self) -> list[Diagnosis]:
        """Return the state of the database and of its settings."""
        ...

    def count_dead(self) -> int:
        """Count dead letters of any age, up to one more than DEAD_COUNT_CAP."""
        ...

    def count_interrupted(self) -> int:
        """Count interrupted runs among the newest dead letters, up to the same number."""
        ...

    def list_dead_groups(self, which: RunFilter) -> list[DeadLetterGroup]: ...
    def summarise(self) -> list[FinishedRunsSummary]:
        """Count the newest finished runs by queue and state."""
        ...

    def list_cancel_requests(self, worker_id: str) -> list[str]: ...
    def list_schedules(self, which: ScheduleFilter) -> list[ScheduleRecord]: ...
    def list_next_schedules(self, limit: int) -> list[ScheduleRecord]:
        """Return active schedules, the one that is due first, or has been for longest, first."""
        ...

    def list_due_schedules(
        self, limit: int, *, at_least: int, less_than: int
    ) -> "list[DueSchedule]":
        """Return schedules that have been due for that many microseconds."""
        ...

    def list_schedules_ahead(self, limit: int, *, by: int) -> list[str]:
        """Return schedules that fired more than `by` microseconds after the present time."""
        ...

    def list_firings(self, schedule: str, before: int, limit: int) -> list[FiringRecord]: ...
    def columns_of(self, table: str) -> frozenset[str]:
        """Return the columns of a table of the application. Empty if there is no such table.

        On PostgreSQL its owner must be the login or the owner of duly's tables. Other roles may
        have created a table of this name in order to be read.
        """
        ...

    def list_locks(self, after: str, limit: int) -> list[LockRecord]:
        """Return the locks that are held, by name, from the first one after `after`."""
        ...

    def get_key(self, key: str) -> "GuardedKey | None": ...
    def list_dead_letters(self, which: DeadLetterFilter) -> "list[DeadLetterRecord]": ...
    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]: ...
    def peek(self, carried: Sequence[str] = ()) -> Peek:
        """Return whether a worker that hands over the `carried` tasks has something to do."""
        ...

    def now(self) -> int: ...

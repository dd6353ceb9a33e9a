"""What can be read from a store."""

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

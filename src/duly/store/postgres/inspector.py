"""Reading."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from duly.core.audit import AUDIT_CHECKS, AuditFinding, RunTotals
from duly.core.concurrency_limits import is_limited, ranges_of
from duly.core.diagnosis import Diagnosis
from duly.core.ended_runs import every_end, present_ends
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
from duly.core.run_ids import is_run_id
from duly.core.schedule import PreviousRuns
from duly.core.schedule_plans import DueSchedule
from duly.core.states import DEAD, FINAL, State
from duly.limits import (
    COUNT_CAP,
    DEAD_COUNT_CAP,
    FEW_TAGGED,
    GROUPS,
    JUMPS,
    RUNNING_RUNS,
    SUMMARY_RUNS,
)
from duly.store.ops.guard import DeadLetterRecord, GuardedKey
from duly.store.ops.runs import Enqueue
from duly.store.postgres.arrays import texts
from duly.store.postgres.diagnostics import SQL as DIAGNOSE
from duly.store.postgres.diagnostics import check_integrity, diagnose, find_oldest_transaction
from duly.store.postgres.steps import SQL as STEPS
from duly.store.queue_capacity import QueueCapacityCache, run_read_dialogue
from duly.store.reads import DeadLetterFilter, Peek, RunFilter, ScheduleFilter
from duly.store.statements import load

SQL = load("duly.store.postgres", "inspect")
ENQUEUE = load("duly.store.postgres", "enqueue")
AUDIT = load("duly.store.postgres", "audit")
BULK = load("duly.store.postgres", "bulk")
GUARD = load("duly.store.postgres", "guard")
LOCKS = load("duly.store.postgres", "locks")
SCHEDULES = load("duly.store.postgres", "schedules")


class InspectorQuery(Protocol):
    """Runs one statement that reads."""

    def __call__(
        self, sql: str, parameters: Mapping[str, Any], *, prepare: bool | None = None
    ) -> list[tuple[Any, ...]]: ...


class PostgresInspector:
    """The reads of a store, over its `_query`."""

    _query: InspectorQuery
    is_pooled = False
    """Whether a pooler stands between, which shares connections."""

    def get_run(self, run_id: str) -> RunRecord | None:
        """Return one run, wherever it is."""
        if not is_run_id(run_id):
            return None
        rows = self._query(SQL["run"], {"run_id": run_id})
        return RunRecord(*rows[0]) if rows else None

    def get_states(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Return the states of those runs that exist."""
        known = [run_id for run_id in run_ids if is_run_id(run_id)]
        if not known:
            return {}
        rows = self._query(SQL["states"], {"run_ids": texts(known)})
        return {row[0]: row[1] for row in rows}

    def list_runs(self, which: RunFilter) -> list[RunRecord]:
        """Return runs, newest first."""
        if which.before is not None and not is_run_id(which.before):
            return []
        (name, _), parameters = _choose_statement(which), _filter(which)
        # Unprepared, so that every plan knows which filters are given.
        if name == "runs" and which.tag is not None:
            known = parameters | {"most": FEW_TAGGED + 1}
            tagged = self._query(SQL["tagged"], known, prepare=False)
            if len(tagged) <= FEW_TAGGED:
                name = "few_runs"
                parameters["run_ids"] = texts([row[0] for row in tagged])
        rows = self._query(SQL[name], parameters, prepare=False)
        return [RunRecord(*row) for row in rows]

    def reach_of(self, which: RunFilter) -> str | None:
        """Return the last run that a list with a `scan` looked at; None if it found the end."""
        _, name = _choose_statement(which)
        if name is None:
            return None
        rows = self._query(SQL[name], _filter(which), prepare=False)
        return rows[0][0] if rows and which.may_have_older(rows[0][1]) else None

    def list_attempts(self, run_id: str) -> list[AttemptRecord]:
        """Return the ended attempts of a run, oldest first."""
        if not is_run_id(run_id):
            return []
        return [AttemptRecord(*row) for row in self._query(SQL["attempts"], {"run_id": run_id})]

    def first_starts(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Return when runs were first started in their generation, if they had earlier attempts."""
        place = {"run_ids": texts([run_id for run_id in run_ids if is_run_id(run_id)])}
        return {run_id: at for run_id, at in self._query(SQL["first_starts"], place) if at}

    def list_steps(self, run_id: str) -> list[StepRecord]:
        """Return the steps of a run, in the order in which they began."""
        if not is_run_id(run_id):
            return []
        return [StepRecord._make(row) for row in self._query(STEPS["all"], {"run_id": run_id})]

    def list_logs(self, run_id: str, limit: int) -> list[LogLine]:
        """Return the log lines of a run, oldest first."""
        if not is_run_id(run_id):
            return []
        rows = self._query(SQL["logs"], {"run_id": run_id, "limit": limit})
        return [LogLine(*row) for row in rows]

    def list_audit_entries(
        self, subject: str | None, limit: int, before: int | None = None
    ) -> list[AuditEntry]:
        """Return operators' acts, newest first."""
        place = {"subject": subject, "limit": limit, "before": before}
        rows = self._query(SQL["acts"], place)
        return [AuditEntry(*row) for row in rows]

    def get_bulk(self, act_id: str) -> BulkAction | None:
        """Return an act on many runs."""
        rows = self._query(BULK["one"], {"id": act_id})
        return BulkAction._make(rows[0]) if rows else None

    def has_silent_bulk(self, lease: int) -> bool:
        """Return whether the process of an act on many runs has been silent for so long."""
        return bool(self._query(BULK["has_silent"], {"lease": lease})[0][0])

    def has_audit_entry(self, subject: str) -> bool:
        """Return whether an act on exactly this subject was recorded."""
        return bool(self._query(SQL["has_act"], {"subject": subject}))

    def list_workers(self) -> list[WorkerRecord]:
        """Return workers, newest first."""
        return [WorkerRecord(*row) for row in self._query(SQL["workers"], {"worker_id": None})]

    def get_worker(self, worker_id: str) -> WorkerRecord | None:
        """Return one worker, however many registered after it."""
        found = self._query(SQL["workers"], {"worker_id": worker_id})
        return WorkerRecord(*found[0]) if found else None

    def list_queues(self) -> list[QueueRecord]:
        """Return queues by name."""
        return [QueueRecord(*row) for row in self._query(SQL["queues"], {})]

    @cached_property
    def queue_capacity(self) -> QueueCapacityCache:
        """What this process knows of how full queues are."""
        return QueueCapacityCache("postgresql", ENQUEUE)

    def check_queue_capacity(self, ops: Sequence[Enqueue]) -> None:
        """Raise QueueFull if runs do not fit into their queues, as far as is known."""
        run_read_dialogue(self.queue_capacity.check(ops), self._query)

    def is_paused(self, queue: str) -> bool:
        """Say whether a queue is paused."""
        return bool(self._query(SQL["paused"], {"queue": queue}))

    def diagnose(self) -> list[Diagnosis]:
        """Say how the server is and how it is set up."""
        return diagnose(self._query, is_pooled=self.is_pooled)

    def find_oldest_transaction(self) -> OpenTransaction | None:
        """Return the transaction that has kept dead rows from being removed for longest."""
        return find_oldest_transaction(self._query)

    def check_integrity(self) -> list[Diagnosis]:
        """Look for broken indexes."""
        return check_integrity(self._query)

    def audit(self, limit: int) -> Iterator[AuditFinding]:
        """Find what must never be, up to so many of each kind."""
        place = {"limit": limit}
        for check, text in AUDIT_CHECKS.items():
            for (subject,) in self._query(AUDIT[check], place):
                yield AuditFinding(check, subject, text)

    def count_runs(self) -> RunTotals:
        """Count all runs, by where they are; reads all of them."""
        return RunTotals(*self._query(AUDIT["count"], {})[0])

    def list_holders(self, run: RunRecord, other_names: tuple[str, ...] = ()) -> list[LimitHolder]:
        """Return who is running under the limits that a run counts against: a few of each."""
        ranges, queue = [("", "")], run.queue
        if is_limited(run.lane):
            ranges = ranges_of(run.lane, (run.task, *other_names))
        found: list[LimitHolder] = []
        for limit, _ in ranges:
            place = {"queue": queue, "limit": limit}
            found += [LimitHolder(*row) for row in self._query(SQL["holders"], place)]
            queue = ""  # The runs of the queue are listed once.
        return found

    def list_unregistered(self) -> list[UnregisteredRuns]:
        """Return the runs that are parked because no live worker registers their tasks."""
        rows = self._query(DIAGNOSE["unregistered"], {"cap": COUNT_CAP + 1})
        return [UnregisteredRuns._make(row) for row in rows]

    def count_dead(self) -> int:
        """Count dead letters of whatever age, up to one more than the cap."""
        return int(self._query(SQL["dead_count"], {"cap": DEAD_COUNT_CAP + 1})[0][0])

    def count_interrupted(self) -> int:
        """Count interrupted runs among so many dead letters, the newest."""
        return int(self._query(SQL["interrupted_count"], {"cap": DEAD_COUNT_CAP + 1})[0][0])

    def list_dead_groups(self, which: RunFilter) -> list[DeadLetterGroup]:
        """Return dead letters grouped by task and fingerprint, the largest first."""
        rows = self._query(SQL["dead_groups"], _filter(which), prepare=False)
        return [DeadLetterGroup(*row) for row in rows]

    def summarise(self) -> list[FinishedRunsSummary]:
        """Return what became of the newest finished runs, by queue and state."""
        return [
            FinishedRunsSummary(*row)
            for row in self._query(SQL["summary"], {"limit": SUMMARY_RUNS})
        ]

    def count_ends(self, since: int, step: int) -> list[FinishedRunsByTime]:
        """Return how many runs ended since then, in pieces of `step` microseconds."""
        place = {"since": since, "step": step, "retried": False}
        return present_ends(map(FinishedRunsByTime._make, self._query(SQL["ends_by_time"], place)))

    def count_retries(self, since: int, step: int) -> list[FinishedRunsByTime]:
        """Return how many attempts were followed by another one, likewise."""
        place = {"since": since, "step": step, "retried": True}
        return [FinishedRunsByTime._make(row) for row in self._query(SQL["ends_by_time"], place)]

    def count_ends_of_tasks(self, since: int) -> list[FinishedRunsByTask]:
        """Return how many runs ended since then, by task, queue and how they did."""
        rows = self._query(SQL["ends_by_task"], {"since": since, "retried": False})
        return present_ends(map(FinishedRunsByTask._make, rows))

    def count_every_end_of_tasks(self, since: int) -> list[FinishedRunsByTask]:
        """Return likewise, but with the ends that operators took back."""
        rows = self._query(SQL["ends_by_task"], {"since": since, "retried": False})
        return every_end(map(FinishedRunsByTask._make, rows))

    def count_retries_of_tasks(self, since: int) -> list[FinishedRunsByTask]:
        """Return how many attempts were followed by another one, by task and queue."""
        rows = self._query(SQL["ends_by_task"], {"since": since, "retried": True})
        return [FinishedRunsByTask._make(row) for row in rows]

    def list_oldest_ready(self) -> list[ReadyRun]:
        """Return the run of each queue that is not paused that has been due for longest."""
        return [ReadyRun._make(row) for row in self._query(SQL["oldest_ready"], {"jumps": JUMPS})]

    def find_by_key(self, key: str) -> list[str]:
        """Return the runs that have a key, of whichever tasks."""
        return [run_id for (run_id,) in self._query(SQL["runs_of_key"], {"key": key})]

    def list_cancel_requests(self, worker_id: str) -> list[str]:
        """Return the runs of a worker that someone asked to cancel."""
        return [row[0] for row in self._query(SQL["cancel_requests"], {"worker_id": worker_id})]

    def peek(self, carried: Sequence[str] = ()) -> Peek:
        """Look whether there is something to do, for one who hands over these tasks."""
        ((*found, look_age, took),) = self._query(SQL["peek"], {"carried": texts(carried)})
        self._note_cost(took, look_age)
        return Peek(*found)

    def _note_cost(self, took: int, look_age: int | None) -> None:
        """Learn how long a look for runs took, and how old the floors in force are if there are."""

    def list_schedules(self, which: ScheduleFilter) -> list[ScheduleRecord]:
        """Return schedules by name."""
        return [
            ScheduleRecord._make(r) for r in self._query(SCHEDULES["schedules"], which._asdict())
        ]

    def list_next_schedules(self, limit: int) -> list[ScheduleRecord]:
        """Return active schedules, the one that is due first, or has been for longest, first."""
        rows = self._query(SCHEDULES["next_schedules"], {"limit": limit})
        return [ScheduleRecord._make(row) for row in rows]

    def list_due_schedules(self, limit: int, *, at_least: int, less_than: int) -> list[DueSchedule]:
        """Return schedules whose time to be looked at is over by that many microseconds."""
        place = {"limit": limit, "at_least": at_least, "less_than": less_than}
        found = []
        for *fields, is_busy, pause_after, now in self._query(SCHEDULES["due"], place):
            schedule = ScheduleRecord._make(fields)
            has_failed = self._has_failed(schedule.name, pause_after)
            found.append(DueSchedule(schedule, PreviousRuns(is_busy, has_failed), now))
        return found

    def list_schedules_ahead(self, limit: int, *, by: int) -> list[str]:
        """Return schedules that have fired more than that many microseconds after now."""
        rows = self._query(SCHEDULES["ahead"], {"limit": limit, "by": by})
        return [name for (name,) in rows]

    def _has_failed(self, schedule: str, pause_after: int | None) -> bool:
        if pause_after is None:
            return False
        place = {"schedule": schedule, "limit": pause_after}
        ((failures,),) = self._query(SCHEDULES["failures"], place)
        return bool(failures >= pause_after)

    def list_firings(self, schedule: str, before: int, limit: int) -> list[FiringRecord]:
        """Return what became of a schedule's instants, newest first."""
        place = {"schedule": schedule, "before": before, "limit": limit}
        return [FiringRecord._make(row) for row in self._query(SCHEDULES["firings"], place)]

    def columns_of(self, table: str) -> frozenset[str]:
        """Return the columns of a table that the login, or the owner of duly's tables, owns."""
        rows = self._query(SQL["columns_of"], {"table": table})
        return frozenset(name for (name,) in rows)

    def list_locks(self, after: str, limit: int) -> list[LockRecord]:
        """Return the locks that somebody holds, by name, behind one."""
        rows = self._query(LOCKS["held"], {"after": after, "limit": limit})
        return [LockRecord._make(row) for row in rows]

    def get_key(self, key: str) -> GuardedKey | None:
        """Return how a key of the guard stands."""
        rows = self._query(GUARD["one"], {"key": key})
        return GuardedKey._make(rows[0]) if rows else None

    def list_dead_letters(self, which: DeadLetterFilter) -> list[DeadLetterRecord]:
        """Return dead letters of other engines, newest first."""
        rows = self._query(GUARD["letters"], which._asdict(), prepare=False)
        return [DeadLetterRecord._make(row) for row in rows]

    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]:
        """Return letters grouped by engine, task and fingerprint, the largest first."""
        rows = self._query(GUARD["letter_groups"], which._asdict(), prepare=False)
        return [DeadLetterGroup._make(row) for row in rows]

    def now(self) -> int:
        """Return the wall time of this store, which is the server's."""
        return int(self._query(SQL["now"], {})[0][0])


def _filter(which: RunFilter) -> dict[str, Any]:
    tag_name, tag_value = which.tag or (None, None)
    return {
        "states": texts(which.states) if which.states else None,
        "task": which.task,
        "queue": which.queue,
        "tag_name": tag_name,
        "tag_value": tag_value,
        "fingerprint": which.fingerprint,
        "since": which.since,
        "before": which.before,
        "limit": which.limit,
        "scan": which.scan,
        "most": RUNNING_RUNS,
        "groups": GROUPS,
        "cap": COUNT_CAP + 1,
    }


def _choose_statement(which: RunFilter) -> tuple[str, str | None]:
    """Return the statement that finds runs by the best of indexes, and what tells how far."""
    if which.tag is not None and which.tag[1] is None:
        return "runs_with_tag", None
    if which.scan is not None and which.tag is not None:
        return "tagged_runs", "scanned_tagged"
    if which.states and DEAD.issuperset(which.states):
        if which.task is not None:
            is_group = which.fingerprint is not None
            return ("dead_runs_of_group" if is_group else "dead_runs_of_task"), None
        return ("dead_runs", None) if which.scan is None else ("dead_among", "scanned_dead")
    if which.states == (State.RUNNING,) and which.tag is None:
        return "running_runs", None
    if which.scan is None:
        return "runs", None
    if which.states and FINAL.isdisjoint(which.states):
        return "live_runs", "scanned_live"
    return "runs_among", "scanned"

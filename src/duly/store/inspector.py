"""The reads of a store, written once for both databases.

Both have a statement for each read, with the same name, parameters and columns. A store executes
these statements in `_query`, on connections of its own that only read.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from duly.core.audit import AUDIT_CHECKS, AuditFinding, RunTotals
from duly.core.concurrency_limits import is_limited, ranges_of
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
from duly.store.reads import DeadLetterFilter, Peek, RunFilter, ScheduleFilter
from duly.store.transaction import Row

R = TypeVar("R", bound=NamedTuple)


class SqlInspector:
    """The reads that are the same on both databases."""

    def _query(self, name: str, /, **parameters: Any) -> list[Row]:  # noqa: ANN401 - as a transaction's
        """Execute the statement `file.statement`, which only reads, and return its rows."""
        raise NotImplementedError

    def _search(self, name: str, /, **parameters: Any) -> list[Row]:  # noqa: ANN401 - as a transaction's
        """Execute a statement whose best plan depends on which filters are given."""
        return self._query(name, **parameters)

    # -- runs --

    def get_run(self, run_id: str) -> RunRecord | None:
        """Return one run, in whichever table it is."""
        if not is_run_id(run_id):
            return None
        return _first(RunRecord, self._query("runs.one", run_id=run_id))

    def get_states(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Return the states of those runs that exist."""
        known = _run_ids(run_ids)
        return dict(self._query("runs.states", run_ids=known)) if known else {}

    def list_runs(self, which: RunFilter) -> list[RunRecord]:
        """Return runs, newest first."""
        if not _has_valid_cursor(which):
            return []
        (name, _), parameters = _choose_statements(which), _parameters(which)
        if name == "runs.newest" and which.tag is not None:
            limits = parameters | {"most": FEW_TAGGED + 1}
            tagged = [run_id for (run_id,) in self._search("runs.tagged", **limits)]
            if len(tagged) <= FEW_TAGGED:
                found = self._search("runs.few_runs", **parameters, run_ids=tagged)
                return _records(RunRecord, found)
        return _records(RunRecord, self._search(name, **parameters))

    def reach_of(self, which: RunFilter) -> str | None:
        """Return the last run that a list with a `scan` read. None if no older run fits."""
        _, name = _choose_statements(which)
        if name is None or not _has_valid_cursor(which):
            return None
        rows = self._search(name, **_parameters(which))
        return rows[0][0] if rows and which.may_have_older(rows[0][1]) else None

    def find_by_key(self, key: str) -> list[str]:
        """Return the runs that have a key, of all tasks."""
        return [run_id for (run_id,) in self._query("runs.runs_of_key", key=key)]

    def list_attempts(self, run_id: str) -> list[AttemptRecord]:
        """Return the ended attempts of a run, oldest first."""
        if not is_run_id(run_id):
            return []
        return _records(AttemptRecord, self._query("inspect.attempts", run_id=run_id))

    def first_starts(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Return when runs were first started in their generation, if they had earlier attempts."""
        rows = self._query("inspect.first_starts", run_ids=_run_ids(run_ids))
        return {run_id: started_at for run_id, started_at in rows if started_at}

    def list_steps(self, run_id: str) -> list[StepRecord]:
        """Return the steps of a run, the first one first."""
        if not is_run_id(run_id):
            return []
        return _records(StepRecord, self._query("steps.all", run_id=run_id))

    def list_logs(self, run_id: str, limit: int) -> list[LogLine]:
        """Return the log lines of a run, oldest first."""
        if not is_run_id(run_id):
            return []
        return _records(LogLine, self._query("inspect.logs", run_id=run_id, limit=limit))

    def list_cancel_requests(self, worker_id: str) -> list[str]:
        """Return the runs of a worker for which a cancel was requested."""
        return [run_id for (run_id,) in self._query("inspect.cancel_requests", worker_id=worker_id)]

    def peek(self, carried: Sequence[str] = ()) -> Peek:
        """Return whether a worker that hands over the `carried` tasks has something to do."""
        ((*found, floors_age, took),) = self._query("inspect.peek", carried=carried)
        self._note_peek_cost(took, floors_age)
        return _record(Peek, found)

    def _note_peek_cost(self, took: int, floors_age: int | None) -> None:
        """Do nothing. Only PostgreSQL has dead index entries that make a peek slow."""

    # -- operators' actions --

    def list_audit_entries(
        self, subject: str | None, limit: int, before: int | None = None
    ) -> list[AuditEntry]:
        """Return operators' actions, newest first."""
        rows = self._query("inspect.acts", subject=subject, limit=limit, before=before)
        return _records(AuditEntry, rows)

    def has_audit_entry(self, subject: str) -> bool:
        """Return whether an action on exactly this subject was recorded."""
        return bool(self._query("inspect.has_act", subject=subject))

    def get_bulk(self, act_id: str) -> BulkAction | None:
        """Return a bulk action."""
        return _first(BulkAction, self._query("bulk.one", id=act_id))

    def has_silent_bulk(self, lease: int) -> bool:
        """Return whether a bulk action was not renewed for a whole lease, in microseconds."""
        ((is_silent,),) = self._query("bulk.has_silent", lease=lease)
        return bool(is_silent)

    # -- workers, queues and limits --

    def list_workers(self) -> list[WorkerRecord]:
        """Return workers, newest first."""
        return self._workers(None)

    def get_worker(self, worker_id: str) -> WorkerRecord | None:
        """Return one worker, even if it is too old for the list."""
        return next(iter(self._workers(worker_id)), None)

    def _workers(self, worker_id: str | None) -> list[WorkerRecord]:
        return _records(WorkerRecord, self._query("inspect.workers", worker_id=worker_id))

    def list_queues(self) -> list[QueueRecord]:
        """Return queues by name."""
        return _records(QueueRecord, self._query("inspect.queues"))

    def is_paused(self, queue: str) -> bool:
        """Return whether a queue is paused."""
        return bool(self._query("inspect.paused", queue=queue))

    def list_holders(self, run: RunRecord, other_names: tuple[str, ...] = ()) -> list[LimitHolder]:
        """Return the runs that hold the limits of a run, under all names of its task."""
        ranges, queue = [("", "")], run.queue
        if is_limited(run.lane):
            ranges = ranges_of(run.lane, (run.task, *other_names))
        found: list[LimitHolder] = []
        for low, high in ranges:
            rows = self._query("inspect.holders", queue=queue, low=low, high=high)
            found += _records(LimitHolder, rows)
            queue = ""  # The runs of the queue are listed once.
        return found

    def list_unregistered(self) -> list[UnregisteredRuns]:
        """Return the runs that are parked because no live worker registers their tasks."""
        return _records(UnregisteredRuns, self._query("diagnose.unregistered", cap=COUNT_CAP + 1))

    def list_oldest_ready(self) -> list[ReadyRun]:
        """Return the run of each queue that is not paused that has been due for longest."""
        return _records(ReadyRun, self._query("inspect.oldest_ready", jumps=JUMPS))

    # -- counts --

    def audit(self, limit: int) -> Iterator[AuditFinding]:
        """Find broken invariants, up to `limit` of each kind."""
        for check, text in AUDIT_CHECKS.items():
            for (subject,) in self._query(f"audit.{check}", limit=limit):
                yield AuditFinding(check, subject, text)

    def count_runs(self) -> RunTotals:
        """Count all runs by state, which reads all of them."""
        (totals,) = self._query("audit.count")
        return RunTotals._make(totals)

    def count_dead(self) -> int:
        """Count dead letters of any age, up to one more than DEAD_COUNT_CAP."""
        ((count,),) = self._query("runs.dead_count", cap=DEAD_COUNT_CAP + 1)
        return int(count)

    def count_interrupted(self) -> int:
        """Count interrupted runs among the newest dead letters, up to the same number."""
        ((count,),) = self._query("runs.interrupted_count", cap=DEAD_COUNT_CAP + 1)
        return int(count)

    def list_dead_groups(self, which: RunFilter) -> list[DeadLetterGroup]:
        """Return dead letters grouped by task and fingerprint, the largest first."""
        return _records(DeadLetterGroup, self._search("runs.dead_groups", **_parameters(which)))

    def summarise(self) -> list[FinishedRunsSummary]:
        """Count the newest finished runs by queue and state."""
        return _records(FinishedRunsSummary, self._query("inspect.summary", limit=SUMMARY_RUNS))

    def count_ends(self, since: int, step: int) -> list[FinishedRunsByTime]:
        """Count the runs that ended since then by their present state, per `step` microseconds."""
        return present_ends(self._counts_by_time(since, step, retried=False))

    def count_retries(self, since: int, step: int) -> list[FinishedRunsByTime]:
        """Count the attempts that failed and were followed by another one, in the same way."""
        return self._counts_by_time(since, step, retried=True)

    def _counts_by_time(self, since: int, step: int, *, retried: bool) -> list[FinishedRunsByTime]:
        rows = self._query("inspect.ends_by_time", since=since, step=step, retried=retried)
        return _records(FinishedRunsByTime, rows)

    def count_ends_of_tasks(self, since: int) -> list[FinishedRunsByTask]:
        """Count the runs that ended since then by task, queue and present state."""
        return present_ends(self._counts_by_task(since, retried=False))

    def count_every_end_of_tasks(self, since: int) -> list[FinishedRunsByTask]:
        """Count the same runs, but include the ends that operators took back."""
        return every_end(self._counts_by_task(since, retried=False))

    def count_retries_of_tasks(self, since: int) -> list[FinishedRunsByTask]:
        """Count the attempts that failed and were followed by another one, by task and queue."""
        return self._counts_by_task(since, retried=True)

    def _counts_by_task(self, since: int, *, retried: bool) -> list[FinishedRunsByTask]:
        rows = self._query("inspect.ends_by_task", since=since, retried=retried)
        return _records(FinishedRunsByTask, rows)

    # -- schedules --

    def list_schedules(self, which: ScheduleFilter) -> list[ScheduleRecord]:
        """Return schedules by name."""
        return _records(ScheduleRecord, self._query("schedules.schedules", **which._asdict()))

    def list_next_schedules(self, limit: int) -> list[ScheduleRecord]:
        """Return active schedules, the one that is due first, or has been for longest, first."""
        return _records(ScheduleRecord, self._query("schedules.next_schedules", limit=limit))

    def list_due_schedules(self, limit: int, *, at_least: int, less_than: int) -> list[DueSchedule]:
        """Return schedules that have been due for that many microseconds."""
        rows = self._query("schedules.due", limit=limit, at_least=at_least, less_than=less_than)
        found = []
        for *fields, is_busy, pause_after, now in rows:
            schedule = _record(ScheduleRecord, fields)
            has_failed = self._has_failed(schedule.name, pause_after)
            found.append(DueSchedule(schedule, PreviousRuns(bool(is_busy), has_failed), now))
        return found

    def _has_failed(self, schedule: str, pause_after: int | None) -> bool:
        if pause_after is None:
            return False
        ((failures,),) = self._query("schedules.failures", schedule=schedule, limit=pause_after)
        return bool(failures >= pause_after)

    def list_schedules_ahead(self, limit: int, *, by: int) -> list[str]:
        """Return schedules that fired more than `by` microseconds after the present time."""
        return [name for (name,) in self._query("schedules.ahead", limit=limit, by=by)]

    def list_firings(self, schedule: str, before: int, limit: int) -> list[FiringRecord]:
        """Return the firings of a schedule, newest first."""
        rows = self._query("schedules.firings", schedule=schedule, before=before, limit=limit)
        return _records(FiringRecord, rows)

    # -- locks, the guard, and tables of the application --

    def list_locks(self, after: str, limit: int) -> list[LockRecord]:
        """Return the locks that are held, by name, from the first one after `after`."""
        return _records(LockRecord, self._query("locks.held", after=after, limit=limit))

    def get_key(self, key: str) -> GuardedKey | None:
        """Return the state of a key of the guard."""
        return _first(GuardedKey, self._query("guard.one", key=key))

    def list_dead_letters(self, which: DeadLetterFilter) -> list[DeadLetterRecord]:
        """Return dead letters of other engines, newest first."""
        return _records(DeadLetterRecord, self._search("guard.letters", **which._asdict()))

    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]:
        """Return dead letters grouped by engine, task and fingerprint, the largest first."""
        return _records(DeadLetterGroup, self._search("guard.letter_groups", **which._asdict()))

    def columns_of(self, table: str) -> frozenset[str]:
        """Return the columns of a table of the application. Empty if there is no such table."""
        return frozenset(name for (name,) in self._query("inspect.columns_of", table=table))


def _has_valid_cursor(which: RunFilter) -> bool:
    return which.before is None or is_run_id(which.before)


def _parameters(which: RunFilter) -> dict[str, Any]:
    tag_name, tag_value = which.tag or (None, None)
    return {
        "states": which.states or None,
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


def _choose_statements(which: RunFilter) -> tuple[str, str | None]:
    """Return the statement that finds runs by the best index, and the one for `reach_of`."""
    if which.tag is not None and which.tag[1] is None:
        return "runs.runs_with_tag", None
    if which.scan is not None and which.tag is not None:
        return "runs.tagged_runs", "runs.scanned_tagged"
    if which.states and DEAD.issuperset(which.states):
        if which.task is not None:
            is_group = which.fingerprint is not None
            return ("runs.dead_runs_of_group" if is_group else "runs.dead_runs_of_task"), None
        if which.scan is None:
            return "runs.dead_runs", None
        return "runs.dead_among", "runs.scanned_dead"
    if which.states == (State.RUNNING,) and which.tag is None:
        return "runs.running_runs", None
    if which.scan is None:
        return "runs.newest", None
    if which.states and FINAL.isdisjoint(which.states):
        return "runs.live_runs", "runs.scanned_live"
    return "runs.runs_among", "runs.scanned"


def _run_ids(texts: Iterable[str]) -> list[str]:
    """Return those texts that can be the id of a run."""
    return [text for text in texts if is_run_id(text)]


def _first(kind: type[R], rows: Sequence[Row]) -> R | None:
    return _record(kind, rows[0]) if rows else None


def _records(kind: type[R], rows: Iterable[Row]) -> list[R]:
    return [_record(kind, row) for row in rows]


def _record(kind: type[R], row: Iterable[Any]) -> R:
    """Return a row as a record. SQLite has no booleans, so it returns 0 and 1 for them."""
    values = list(row)
    for place in _booleans_of(kind):
        values[place] = bool(values[place])
    return kind(*values)


@cache
def _booleans_of(kind: type[NamedTuple]) -> tuple[int, ...]:
    types = (kind.__annotations__[name] for name in kind._fields)
    return tuple(place for place, found in enumerate(types) if found is bool)

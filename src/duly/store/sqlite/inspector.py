"""Reading."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from duly.clock import MICROSECONDS, Clock, boot_id
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
from duly.core.schedule import PreviousRuns
from duly.core.schedule_plans import DueSchedule
from duly.core.states import DEAD, FINAL, State
from duly.limits import COUNT_CAP, DEAD_COUNT_CAP, FEW_TAGGED, GROUPS, JUMPS, SUMMARY_RUNS
from duly.store.ops.guard import DeadLetterRecord, GuardedKey
from duly.store.ops.runs import Enqueue
from duly.store.queue_capacity import QueueCapacityCache, run_read_dialogue
from duly.store.reads import DeadLetterFilter, Peek, RunFilter, ScheduleFilter
from duly.store.sqlite.clock_readings import read_clocks
from duly.store.sqlite.diagnostics import SQL as DIAGNOSE
from duly.store.sqlite.steps import SQL as STEPS
from duly.store.sqlite.steps import as_record
from duly.store.statements import load

SQL = load("duly.store.sqlite", "inspect")
ENQUEUE = load("duly.store.sqlite", "enqueue")
AUDIT = load("duly.store.sqlite", "audit")
BULK = load("duly.store.sqlite", "bulk")
GUARD = load("duly.store.sqlite", "guard")
LOCKS = load("duly.store.sqlite", "locks")
SCHEDULES = load("duly.store.sqlite", "schedules")

Query = Callable[[str, dict[str, Any]], list[tuple[Any, ...]]]


class SqliteInspector:
    """The reads of a store, over its `_query`."""

    _query: Query
    _clock: Clock

    def get_run(self, run_id: str) -> RunRecord | None:
        """Return one run, wherever it is."""
        rows = self._query(SQL["run"], {"run_id": run_id})
        return _run(rows[0]) if rows else None

    def get_states(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Return the states of those runs that exist."""
        return dict(self._query(SQL["states"], {"run_ids": json.dumps(list(run_ids))}))

    def list_runs(self, which: RunFilter) -> list[RunRecord]:
        """Return runs, newest first."""
        (name, _), parameters = _choose_statement(which), _filter(which)
        if name == "runs" and which.tag is not None:
            tagged = self._query(SQL["tagged"], parameters | {"most": FEW_TAGGED + 1})
            if len(tagged) <= FEW_TAGGED:
                name = "few_runs"
                parameters["run_ids"] = json.dumps([row[0] for row in tagged])
        return [_run(row) for row in self._query(SQL[name], parameters)]

    def reach_of(self, which: RunFilter) -> str | None:
        """Return the last run that a list with a `scan` looked at; None if it found the end."""
        _, name = _choose_statement(which)
        if name is None:
            return None
        rows = self._query(SQL[name], _filter(which))
        return rows[0][0] if rows and which.may_have_older(rows[0][1]) else None

    def list_attempts(self, run_id: str) -> list[AttemptRecord]:
        """Return the ended attempts of a run, oldest first."""
        return [AttemptRecord(*row) for row in self._query(SQL["attempts"], {"run_id": run_id})]

    def first_starts(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Return when runs were first started in their generation, if they had earlier attempts."""
        place = {"run_ids": json.dumps(list(run_ids))}
        return {run_id: at for run_id, at in self._query(SQL["first_starts"], place) if at}

    def list_steps(self, run_id: str) -> list[StepRecord]:
        """Return the steps of a run, in the order in which they began."""
        return [as_record(row) for row in self._query(STEPS["all"], {"run_id": run_id})]

    def list_logs(self, run_id: str, limit: int) -> list[LogLine]:
        """Return the log lines of a run, oldest first."""
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
        return bool(
            self._query(BULK["has_silent"], {"lease": lease, "now": self._clock.now()})[0][0]
        )

    def has_audit_entry(self, subject: str) -> bool:
        """Return whether an act on exactly this subject was recorded."""
        return bool(self._query(SQL["has_act"], {"subject": subject}))

    def list_workers(self) -> list[WorkerRecord]:
        """Return workers, newest first."""
        return self._workers(None)

    def get_worker(self, worker_id: str) -> WorkerRecord | None:
        """Return one worker, however many registered after it."""
        return next(iter(self._workers(worker_id)), None)

    def _workers(self, worker_id: str | None) -> list[WorkerRecord]:
        found = self._query(SQL["workers"], {"worker_id": worker_id})
        rows = [WorkerRecord(*row) for row in found]
        now = self.now()
        return [row._replace(seen_at=self._last_seen(row)).as_of(now) for row in rows]

    def _last_seen(self, worker: WorkerRecord) -> int:
        """Return when a worker beat last, as its row has it."""
        return worker.seen_at

    def list_queues(self) -> list[QueueRecord]:
        """Return queues by name."""
        return [
            QueueRecord(name, bool(paused), *counts)
            for name, paused, *counts in self._query(SQL["queues"], {})
        ]

    @cached_property
    def queue_capacity(self) -> QueueCapacityCache:
        """What this process knows of how full queues are."""
        return QueueCapacityCache("sqlite", ENQUEUE)

    def check_queue_capacity(self, ops: Sequence[Enqueue]) -> None:
        """Raise QueueFull if runs do not fit into their queues, as far as is known."""
        run_read_dialogue(self.queue_capacity.check(ops), self._query)

    def is_paused(self, queue: str) -> bool:
        """Say whether a queue is paused."""
        return bool(self._query(SQL["paused"], {"queue": queue}))

    def audit(self, limit: int) -> Iterator[AuditFinding]:
        """Find what must never be, up to so many of each kind."""
        now = self.now()
        place = {
            "limit": limit,
            "now": now,
            "a_while_ago": now - 60 * MICROSECONDS,
        }
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
        for low, high in ranges:
            place = {"queue": queue, "low": low, "high": high}
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
        return [DeadLetterGroup(*row) for row in self._query(SQL["dead_groups"], _filter(which))]

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

    def find_oldest_transaction(self) -> None:
        """Return none: SQLite keeps no dead rows for transactions of others."""

    def find_by_key(self, key: str) -> list[str]:
        """Return the runs that have a key, of whichever tasks."""
        return [run_id for (run_id,) in self._query(SQL["runs_of_key"], {"key": key})]

    def list_cancel_requests(self, worker_id: str) -> list[str]:
        """Return the runs of a worker that someone asked to cancel."""
        return [row[0] for row in self._query(SQL["cancel_requests"], {"worker_id": worker_id})]

    def peek(self, carried: Sequence[str] = ()) -> Peek:
        """Look whether there is something to do, for one who hands over these tasks."""
        (row,) = self._query(SQL["peek"], {"carried": json.dumps(carried)})
        ready, suspect, parked, due_at, look_at, awaits, waits, strayed, stale_at, limited = row
        now = self.now()
        due, fire, stale = (None if at is None else at - now for at in (due_at, look_at, stale_at))
        flags = bool(ready), bool(suspect), bool(parked)
        more = bool(awaits), bool(waits), bool(strayed)
        return Peek(*flags, due, fire, *more, stale, bool(limited))

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
        now = self.now()
        place = {"now": now, "limit": limit, "at_least": at_least, "less_than": less_than}
        found = []
        for *fields, is_busy, pause_after in self._query(SCHEDULES["due"], place):
            schedule = ScheduleRecord._make(fields)
            has_failed = self._has_failed(schedule.name, pause_after)
            found.append(DueSchedule(schedule, PreviousRuns(bool(is_busy), has_failed), now))
        return found

    def list_schedules_ahead(self, limit: int, *, by: int) -> list[str]:
        """Return schedules that have fired more than that many microseconds after now."""
        rows = self._query(SCHEDULES["ahead"], {"now": self.now(), "limit": limit, "by": by})
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
        """Return the columns of a table; none if the file has no such table."""
        rows = self._query(SQL["columns_of"], {"table": table})
        return frozenset(name for (name,) in rows)

    def list_locks(self, after: str, limit: int) -> list[LockRecord]:
        """Return the locks that somebody holds, by name, behind one."""
        clock = {"uptime": self._clock.uptime(), "boot": boot_id().hex()}
        place = clock | {"after": after, "limit": limit}
        return [LockRecord._make(row) for row in self._query(LOCKS["held"], place)]

    def get_key(self, key: str) -> GuardedKey | None:
        """Return how a key of the guard stands."""
        place = {"key": key} | read_clocks(self._clock)._asdict()
        rows = self._query(GUARD["one"], place)
        return GuardedKey._make(rows[0]) if rows else None

    def list_dead_letters(self, which: DeadLetterFilter) -> list[DeadLetterRecord]:
        """Return dead letters of other engines, newest first."""
        return [
            DeadLetterRecord._make(row) for row in self._query(GUARD["letters"], which._asdict())
        ]

    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]:
        """Return letters grouped by engine, task and fingerprint, the largest first."""
        rows = self._query(GUARD["letter_groups"], which._asdict())
        return [DeadLetterGroup._make(row) for row in rows]

    def now(self) -> int:
        """Return the wall time of the store."""
        raise NotImplementedError


def _filter(which: RunFilter) -> dict[str, Any]:
    tag_name, tag_value = which.tag or (None, None)
    return {
        "states": json.dumps(which.states) if which.states else None,
        "task": which.task,
        "queue": which.queue,
        "tag_name": tag_name,
        "tag_value": tag_value,
        "fingerprint": which.fingerprint,
        "since": which.since,
        "before": which.before,
        "limit": which.limit,
        "scan": which.scan,
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


def _run(row: tuple[Any, ...] | sqlite3.Row) -> RunRecord:
    columns = list(row)
    columns[_CANCEL_REQUESTED] = bool(columns[_CANCEL_REQUESTED])
    return RunRecord(*columns)


_CANCEL_REQUESTED = 18

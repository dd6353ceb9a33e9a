"""The operations of the routes: show tasks, and act on them on behalf of a user."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from duly import Filter
from duly.api.prune import prune
from duly.api.runs import every_run
from duly.clock import MICROSECONDS
from duly.compat.fastapi_taskflow.context import func_name as name_shown
from duly.compat.fastapi_taskflow.manager import TaskManager
from duly.compat.fastapi_taskflow.records import STATES, STATUSES, TaskStatus
from duly.core.instants import moment
from duly.core.states import DEAD
from duly.errors import (
    BadOption,
    DulyError,
    RunNotFinal,
    RunNotFound,
    StepNotResolved,
    TaskNotRegistered,
)
from duly.limits import NAME_BYTES, SCAN_RUNS, TICK_BATCH
from duly.store.ops.operators import RecordAuditEntry
from duly.store.ops.upkeep import Prune

_SECONDS = {"min": 60, "hour": 3_600, "day": 86_400}
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([hd])")
_LIMIT, _FORGET = "limit queue", "delete history"
_ACTIONS = {
    "redrive": "retry",
    "edit and redrive": "retry",
    _LIMIT: "update_queue",
    _FORGET: "delete_history",
}
"""Operator actions under the names of fastapi-taskflow."""


_HIDDEN = "hidden: only users that TaskAdmin(auth=…) accepts can see it"


def without_secrets(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task as JSON data without fields that could reveal the application's code."""
    shown = {name: value for name, value in task.items() if name != "arguments"}
    for name in ("error", "stacktrace"):
        shown[name] = None if shown[name] is None else _HIDDEN
    return {**shown, "logs": [_HIDDEN] if shown["logs"] else []}


class TaskStatusConflict(DulyError):
    """The status of a task does not allow the requested action."""


class TaskOperations:
    """The operations on a manager's tasks that requests need."""

    def __init__(self, manager: TaskManager, *, shows_arguments: bool) -> None:
        self._manager = manager
        self._duly = manager.duly
        self._tasks = manager.store
        self._shows_arguments = shows_arguments

    # -- reading --

    def get(self, task_id: str) -> dict[str, Any]:
        """Return one task."""
        found = self._tasks.get(task_id, arguments=self._shows_arguments)
        if found is None:
            raise RunNotFound(task_id)
        return found.to_dict()

    def page(
        self,
        status: TaskStatus | None,
        func_name: str | None,
        *,
        queue: str | None,
        tag: str | None,
        since: str,
        limit: int,
        cursor: str | None,
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return a page of tasks, newest first and without log lines, and the next cursor.

        A request examines a bounded number of tasks, so a page may be short or empty and still have
        a next page.
        """
        if status is TaskStatus.REJECTED:
            return [], None
        state = None if status is None else STATES[status]
        after = self._after(since)
        pages = [
            self._duly.runs.page(
                Filter(state, task, queue, tag, after), limit=limit, cursor=cursor, scan=SCAN_RUNS
            )
            for task in self._tasksname_of(func_name)
        ]
        # Tasks after the earliest page end belong to the next page.
        following = max((page.cursor for page in pages if page.cursor is not None), default=None)
        found = [run for page in pages for run in page if following is None or run.id >= following]
        found.sort(key=lambda run: run.id, reverse=True)
        if len(found) > limit:
            found = found[:limit]
            following = found[-1].id
        shown = [
            self._tasks.record(run.record, arguments=self._shows_arguments).to_dict()
            for run in found
        ]
        return shown, following

    def metrics(self) -> dict[str, Any]:
        """Count tasks: all live ones, and the newest finished ones."""
        queues = self._duly.store.list_queues()
        counts = dict.fromkeys(STATES, 0)
        counts[TaskStatus.PENDING] = sum(queue.ready + queue.waiting for queue in queues)
        counts[TaskStatus.RUNNING] = sum(queue.running for queue in queues)
        begun = elapsed = 0
        for row in self._duly.store.summarise():
            counts[STATUSES[row.state]] += row.runs
            begun, elapsed = begun + row.begun, elapsed + row.elapsed
        total = sum(counts.values())
        shown = ("success", "failed", "running", "pending", "interrupted", "cancelled")
        return {
            "total": total,
            **{name: counts[TaskStatus(name)] for name in shown},
            "success_rate": counts[TaskStatus.SUCCESS] / total if total else 0.0,
            "avg_duration_seconds": round(elapsed / MICROSECONDS / begun, 6) if begun else 0.0,
        }

    def audit(self, limit: int) -> list[dict[str, Any]]:
        """Return the audit entries, newest first."""
        return [
            {
                "entry_id": f"{act.at}-{act.subject}",
                "action": _ACTIONS.get(act.act, act.act),
                "task_id": act.subject,
                "actor": act.actor,
                "timestamp": moment(act.at).isoformat(),
                "detail": {"reason": act.reason} if act.reason else {},
            }
            for act in self._duly.store.list_audit_entries(None, limit)
        ]

    # -- actions --

    def cancel(self, task_id: str, actor: object) -> dict[str, Any]:
        """Cancel a waiting task, or ask a running one to stop."""
        run = self._duly.runs.get(task_id)
        # For a task that was cancelled earlier, `cancel` would answer as if it were cancelled now.
        answer = None if run.is_final else run.cancel(actor=name_of(actor))
        if answer not in {"cancelled", "requested"}:
            status = STATUSES[answer or run.state]
            raise TaskStatusConflict(
                f"only pending and running tasks can be cancelled; this one is {status}"
            )
        return {"task_id": task_id, "task": self.get(task_id)}

    def retry(self, task_id: str, actor: object) -> dict[str, Any]:
        """Queue a task again, under its own id."""
        run = self._duly.runs.get(task_id)
        if run.state not in DEAD:
            status = STATUSES[run.state]
            raise TaskStatusConflict(
                f"only failed and interrupted tasks can be retried; this one is {status}"
            )
        if self._duly.registry.find(run.record.task) is None:
            raise TaskNotRegistered(run.record.task, self._duly.registry.names())
        try:
            run.retry(actor=name_of(actor))
        except RunNotFinal as error:
            is_own = error.run_id == task_id
            why = "another user has just retried it" if is_own else str(error)
            raise TaskStatusConflict(why) from None
        except StepNotResolved as error:
            raise TaskStatusConflict(str(error)) from None
        return {"task_id": task_id, "task": self.get(task_id)}

    def retry_all(self, task_ids: Iterable[str], actor: object) -> dict[str, Any]:
        """Retry those tasks that can be retried, and return which."""
        results = []
        skipped = 0
        for task_id in task_ids:
            try:
                self.retry(task_id, actor)
            except (RunNotFound, TaskStatusConflict, TaskNotRegistered):
                skipped += 1
            else:
                results.append({"original_task_id": task_id, "new_task_id": task_id})
        return {"dispatched": len(results), "skipped": skipped, "results": results}

    def retry_failed(self, since: str, func_name: str | None, actor: object) -> dict[str, Any]:
        """Retry all failed or interrupted tasks that were added since then."""
        after = self._after(since)
        task_ids = (
            run.id
            for task in self._tasksname_of(func_name)
            for run in every_run(self._duly.runs, Filter(sorted(DEAD), task, since=after))
        )
        return self.retry_all(task_ids, actor)

    def limit_queue(
        self, name: str, concurrency: int | None, max_size: int | None, actor: object
    ) -> dict[str, Any]:
        """Change the limits of a queue in this process. Raise KeyError for an unknown queue."""
        changed = self._manager.update_queue_config(name, concurrency, max_size)
        limits = f"concurrency={concurrency}, max_size={max_size}"
        self._duly.store.do(RecordAuditEntry(name_of(actor), _LIMIT, f"queue {name}", limits))
        return changed

    def delete_history(self, value: int, unit: str, actor: object) -> dict[str, int]:
        """Delete tasks that ended longer ago than this, and return how many."""
        if unit not in _SECONDS:
            raise BadOption(f"unit must be one of {', '.join(_SECONDS)}, not {unit!r:.80}")
        op = Prune(value * _SECONDS[unit] * MICROSECONDS, TICK_BATCH)
        act = RecordAuditEntry(name_of(actor), _FORGET, f"history older than {value} {unit}")
        deleted = prune(self._duly.store, op, act=act)
        return {"deleted": deleted, "store": 0, "backend": deleted}

    def _tasksname_of(self, func_name: str | None) -> list[str | None]:
        """Return the tasks whose functions have a name. None stands for any task."""
        if func_name is None:
            return [None]
        known = self._duly.registry.names()
        return [task for task in known if name_shown(task) == func_name]

    def _after(self, since: str) -> datetime | None:
        if since == "all":
            return None
        match = _WINDOW.fullmatch(since)
        if match is None:
            raise BadOption(f"since must have the form <N>h, <N>d or all, not {since!r:.80}")
        amount = int(match[1])
        ago = timedelta(hours=amount) if match[2] == "h" else timedelta(days=amount)
        try:
            return moment(self._duly.store.now()) - ago
        except OverflowError:
            return None  # Earlier than any date, so there is no limit.


def name_of(actor: object) -> str:
    """Return the name of the actor. A user's dependency may have returned any object."""
    return actor[:NAME_BYTES] if isinstance(actor, str) and actor else "anonymous"

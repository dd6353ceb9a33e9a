"""What the routes do: look at tasks, and act on them in somebody's name."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from duly.api.prune import prune
from duly.api.runs import Filter
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
from duly.limits import NAME_BYTES, PAGE, SCAN_RUNS, TICK_BATCH
from duly.store.admin_ops import RecordAuditEntry
from duly.store.ops import Prune

_SECONDS = {"min": 60, "hour": 3_600, "day": 86_400}
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([hd])")
_LIMIT, _FORGET = "limit queue", "delete history"
_ACTIONS = {
    "redrive": "retry",
    "edit and redrive": "retry",
    _LIMIT: "update_queue",
    _FORGET: "delete_history",
}
"""Acts as fastapi-taskflow calls them."""


_HIDDEN = "hidden: only users that TaskAdmin(auth=…) accepts can see it"


def without_secrets(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task as JSON data without what code and data of the application may be read from."""
    shown = {name: value for name, value in task.items() if name != "arguments"}
    for name in ("error", "stacktrace"):
        shown[name] = None if shown[name] is None else _HIDDEN
    return {**shown, "logs": [_HIDDEN] if shown["logs"] else []}


class TaskStatusConflict(DulyError):
    """A task is not in a status that allows what was asked for."""


class TaskOperations:
    """The tasks of a manager, as one who answers requests needs them."""

    def __init__(self, manager: TaskManager, *, shows_arguments: bool) -> None:
        self._manager = manager
        self._duly = manager.duly
        self._tasks = manager.store
        self._shows_arguments = shows_arguments

    # -- looking --

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
        """Return tasks, newest first and without their lines, and where the list goes on.

        Among so many as a request has time for: a page may be short, or empty, and still go on.
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
        # What of one task lies behind the end of another's page belongs to the next one.
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
        """Count tasks: those that live, and the newest of those that have ended."""
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
        """Return what operators did, newest first."""
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

    # -- acting --

    def cancel(self, task_id: str, actor: object) -> dict[str, Any]:
        """Cancel a task that waits; ask one that runs to stop."""
        run = self._duly.runs.get(task_id)
        # Asked of one that was cancelled before, it would answer as of one that is so now.
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
        """Retry those that can be, and say which."""
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
        """Retry all that failed or were interrupted and were added since then."""
        after = self._after(since)
        task_ids = (
            task_id
            for task in self._tasksname_of(func_name)
            for task_id in self._dead(Filter(sorted(DEAD), task, since=after))
        )
        return self.retry_all(task_ids, actor)

    def limit_queue(
        self, name: str, concurrency: int | None, max_size: int | None, actor: object
    ) -> dict[str, Any]:
        """Change the limits of a queue in this process; KeyError if there is no such queue."""
        changed = self._manager.update_queue_config(name, concurrency, max_size)
        limits = f"concurrency={concurrency}, max_size={max_size}"
        self._duly.store.apply([RecordAuditEntry(name_of(actor), _LIMIT, f"queue {name}", limits)])
        return changed

    def delete_history(self, value: int, unit: str, actor: object) -> dict[str, int]:
        """Forget tasks that ended so long ago, and say how many."""
        if unit not in _SECONDS:
            raise BadOption(f"unit must be one of {', '.join(_SECONDS)}, not {unit!r:.80}")
        op = Prune(value * _SECONDS[unit] * MICROSECONDS, TICK_BATCH)
        act = RecordAuditEntry(name_of(actor), _FORGET, f"history older than {value} {unit}")
        deleted = prune(self._duly.store, op, act=act)
        return {"deleted": deleted, "store": 0, "backend": deleted}

    def _dead(self, which: Filter) -> Iterator[str]:
        cursor = None
        while True:
            page = self._duly.runs.page(which, limit=PAGE, cursor=cursor)
            yield from (run.id for run in page)
            cursor = page.cursor
            if cursor is None:
                return

    def _tasksname_of(self, func_name: str | None) -> list[str | None]:
        """Return the tasks whose functions have a name; None is any task."""
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
            return None  # Before any date there is: all.


def name_of(actor: object) -> str:
    """Return who acts; a dependency of the user's own may have returned anything."""
    return actor[:NAME_BYTES] if isinstance(actor, str) and actor else "anonymous"

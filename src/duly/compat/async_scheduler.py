"""An `AsyncScheduler` in a web application, as a 2026 article on FastAPI builds it by hand.

It has the same names and calls, on duly's engine. Several processes never run an instant twice. A
task that fails runs again at its next instant. Missed instants follow a policy. Tasks added in one
process run in any other and after a restart.
"""

import asyncio
import enum
import inspect
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from duly import Duly, Task
from duly.actor import actor_of, resolve_actor
from duly.api.prune import prune
from duly.clock import MICROSECONDS, new_id
from duly.compat.async_cutover import move_once_tasks
from duly.core.instants import moment
from duly.core.record import RunRecord
from duly.core.states import FINAL, State, stored_tags
from duly.errors import BadOption, LockBusy, ScheduleExists
from duly.extend import run_in_thread
from duly.limits import PAGE, TICK_BATCH
from duly.locks.ownership import Ownership, acquire_ownership
from duly.observe.logs import log_duplicate
from duly.registry import is_local
from duly.store.ops.locks import Locked
from duly.store.ops.operators import RecordAuditEntry
from duly.store.ops.upkeep import Prune
from duly.store.reads import RunFilter, ScheduleFilter
from duly.task_options import define

if TYPE_CHECKING:
    from duly.extend import EmbeddedWorker

_DAY = 86_400
_TAG = "schedule"
"""The tag with the name of the schedule, on the schedule's runs."""
_ONCE = "Once"
_ALL = 1_000_000
_LAST_RUN_STATUSES = {
    "both": "this one-time task is enqueued in addition to it, and both run",
    "replace": "the one-time task is replaced, and does not run",
    "keep": "it is kept, and this one-time task is not added",
}


class TaskType(enum.Enum):
    """How a task is scheduled."""

    ONCE = "once"
    CRON = "cron"


class LastRunStatus(enum.Enum):
    """How a run ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class SchedulerLog:
    """One run of a scheduled task."""

    worker_id: str
    task_name: str
    task_type: TaskType
    status: LastRunStatus
    error_message: str | None
    created_at: datetime


class DistributedDBLock:
    """A lock by task name that only its owner can renew and release."""

    def __init__(self, lock_time: int = 30, *, duly: Duly | None = None) -> None:
        self.lock_time = lock_time
        self.worker_id = new_id()
        self._duly = duly or Duly()
        self._held: dict[str, Ownership] = {}

    async def acquire(self, task_name: str) -> bool:
        """Acquire the lock. Return whether it was free."""
        taken = await run_in_thread(lambda: self._acquire(task_name), undo=_release_lock)
        if isinstance(taken, Ownership):
            self._held[task_name] = taken
        return isinstance(taken, Ownership)

    async def release(self, task_name: str) -> None:
        """Release the lock if this object holds it."""
        if task_name in self._held:
            await run_in_thread(self._held.pop(task_name).release)

    async def renew(self, task_name: str) -> bool:
        """Extend the lock by its full time. Return whether this object still holds it."""
        return task_name in self._held and await run_in_thread(self._held[task_name].renew)

    async def cleanup_expired_locks(self) -> bool:
        """Do nothing: an expired lock is free, and its fence must be kept."""
        return False

    @asynccontextmanager
    async def lock(self, task_name: str) -> AsyncIterator[None]:
        """Hold the lock during a block. Raise LockBusy if another process holds it."""
        if not await self.acquire(task_name):
            raise LockBusy(task_name, "another process", float(self.lock_time))
        try:
            yield
        finally:
            await self.release(task_name)

    def _acquire(self, task_name: str) -> Ownership | Locked:
        store, holder = self._duly.store, actor_of(self._duly.settings.actor)
        return acquire_ownership(store, task_name, new_id(), holder=holder, ttl=self.lock_time)


class AsyncScheduler:
    """Schedules functions from inside an application and runs them on its event loop."""

    def __init__(self, duly: Duly | None = None) -> None:
        self.duly = duly or Duly()
        self.lock_manager = DistributedDBLock(duly=self.duly)
        self.task_registry: dict[str, Callable[..., Any]] = {}
        self.running = False
        self._named: dict[str, Task[..., Any]] = {}
        self._own: dict[Callable[..., Any], Task[..., Any]] = {}
        self._worker: EmbeddedWorker | None = None
        self._is_cut_over = False
        self._known_functions = 0
        """The number of functions known when rows of the hand-built scheduler were last moved."""
        self._reported: set[str] = set()

    def register_task(self, task_name: str, task_func: Callable[..., Any]) -> None:
        """Register a function under a name, and its module's public functions under theirs.

        A later function replaces an earlier one of the same name. duly never imports a function
        because stored text names it. If another process, or this one before a restart, adds a task,
        its function must therefore be registered here.
        """
        if not task_name or not callable(task_func):
            raise ValueError("a task needs a name and a function")
        self._name(task_name, task_func)
        self._register_module(task_func)

    async def add_cron_task(
        self,
        task_name: str,
        cron: str,
        func: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        tz: str = "UTC",
    ) -> None:
        """Add a task with a cron expression, or change the one with that name.

        If there are six fields, the last is seconds, as in croniter. A one-time task of that name
        that has not run yet is replaced, with a warning in the log. The article's lock allows one
        run of a task at a time, so an instant is skipped while the last run is live. Its firing has
        the reason `overlap`.
        """
        self.register_task(task_name, func)
        task = self._named[task_name]

        def add() -> None:
            schedules = self.duly.schedules
            put = partial(
                schedules.add,
                task_name,
                task,
                cron=cron,
                tz=tz,
                seconds_field="last",
                args=args,
                kwargs=dict(kwargs or {}),
                overlap="skip",
            )
            try:
                put(on_duplicate="error")
            except ScheduleExists:
                if schedules.get(task_name).when == _ONCE:
                    log_duplicate(task_name, _LAST_RUN_STATUSES["replace"])
                put()

        await asyncio.to_thread(add)
        await self._move_legacy_tasks()

    async def add_once_task(
        self,
        task_name: str,
        execute_time: datetime,
        func: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        on_duplicate: Literal["both", "replace", "keep", "error"] = "both",
    ) -> None:
        """Add a task that runs once. Tasks of that name that have already run do not matter.

        If a task of that name has not run yet, `on_duplicate` decides: with "both", each runs at
        its time; with "replace", the new one replaces the other; with "keep", the new one is not
        added; with "error", ScheduleExists is raised. The first three log a warning. "both" does
        not change a cron task of that name. If the name is not registered, as with one name per
        user, the run has the name of its function. Any process that registers a function of that
        module can run it.
        """
        if task_name in self._named or is_local(func) or inspect.ismethod(func):
            self.register_task(task_name, func)
            task = self._named[task_name]
        else:
            self.task_registry[task_name] = func
            task = self._own_task(func)
            self._register_module(func)

        named = dict(kwargs or {})
        put = partial(
            self.duly.schedules.add, task_name, task, at=execute_time, args=args, kwargs=named
        )

        def add() -> None:
            try:
                put(on_duplicate="error")
            except ScheduleExists:
                if on_duplicate not in _LAST_RUN_STATUSES:
                    raise
                log_duplicate(task_name, _LAST_RUN_STATUSES[on_duplicate])
                if on_duplicate == "both":
                    # A schedule has one instant, so the other one becomes a run that waits for its
                    # time.
                    later = task.using(at=execute_time, tags={_TAG: task_name})
                    later.enqueue(*args, **named)
                else:
                    put(on_duplicate=on_duplicate)

        if on_duplicate not in {*_LAST_RUN_STATUSES, "error"}:
            raise BadOption(
                f'on_duplicate must be "both", "replace", "keep" or "error", not {on_duplicate!r}'
            )
        await asyncio.to_thread(add)
        await self._move_legacy_tasks()

    async def start(self) -> None:
        """Start to fire schedules and run tasks on this event loop.

        Waiting one-time tasks in the tables of the hand-built scheduler are moved as soon as their
        functions are registered.
        """
        if self.running:
            return
        self.running = True
        loop = asyncio.get_running_loop()
        self._worker = self.duly.worker(loop=loop)
        await run_in_thread(self._worker.start, undo=lambda started: started.stop(grace=0.0))
        await self._move_legacy_tasks()

    async def stop(self) -> None:
        """Stop claiming, wait for running tasks during the grace period, and release the rest."""
        if not self.running or self._worker is None:
            return
        self.running = False
        # Not on one of the loop's own threads, which tasks may keep busy for as long as they run.
        await run_in_thread(self._worker.stop)

    async def list_task_logs(
        self,
        task_name: str = "",
        task_type: TaskType | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> Sequence[SchedulerLog]:
        """Return runs of scheduled tasks, newest first."""
        return await asyncio.to_thread(self._logs, task_name, task_type, limit, offset)

    async def cleanup_old_logs(self, keep_days: int = 30) -> bool:
        """Delete the history of older runs.

        Return whether there was any. duly also prunes by itself.
        """
        op = Prune(keep_days * _DAY * MICROSECONDS, TICK_BATCH)
        act = RecordAuditEntry(resolve_actor(None), "prune", f"history older than {keep_days} days")
        return bool(await asyncio.to_thread(prune, self.duly.store, op, act=act))

    async def _move_legacy_tasks(self) -> None:
        """Move tasks from the tables of a hand-built scheduler if more of them can run now."""
        known = len(self._own) + len(self._named)
        if self._is_cut_over or not self.running or known == self._known_functions:
            return
        self._known_functions = known
        left = await asyncio.to_thread(
            move_once_tasks, self.duly, self._find, tag=_TAG, reported=self._reported
        )
        self._is_cut_over = not left

    def _find(self, task_name: str, path: str) -> Task[..., Any] | None:
        own = {f"{func.__module__}.{func.__name__}": task for func, task in list(self._own.items())}
        return self._named.get(task_name) or own.get(path)

    def _name(self, task_name: str, func: Callable[..., Any]) -> None:
        """Make a function the task with a name, unless the application has another task with it."""
        known = self._named.get(task_name)
        if known is None:
            self._named[task_name] = self.duly.task(name=task_name)(func)
        elif known.definition.function != func:
            definition = replace(define(func, name=task_name), tracing=known.definition.tracing)
            self.duly.registry.put(definition)
            self._named[task_name] = Task(self.duly, definition)
        self.task_registry[task_name] = func

    def _register_module(self, func: Callable[..., Any]) -> None:
        """Make the public functions of a module tasks with their own names."""
        module = sys.modules.get(func.__module__)
        for name, found in sorted(vars(module).items()) if module is not None else ():
            is_own = inspect.isfunction(found) and found.__module__ == func.__module__
            if is_own and not name.startswith("_") and found.__qualname__ == name:
                self._own_task(found)

    def _own_task(self, func: Callable[..., Any]) -> Task[..., Any]:
        """Return the task with the name of its function."""
        if func not in self._own:
            self._own[func] = self.duly.task(func)
        return self._own[func]

    def _logs(
        self, task_name: str, task_type: TaskType | None, limit: int, offset: int
    ) -> list[SchedulerLog]:
        wanted = offset + limit
        kinds = self._kinds(task_name)
        which = RunFilter(tag=(_TAG, task_name or None), limit=max(wanted, PAGE))
        found: list[SchedulerLog] = []
        while len(found) < wanted:
            page = self.duly.store.list_runs(which)
            logs = [_log(run, kinds) for run in page if not _is_waiting(run)]
            found += [log for log in logs if task_type in {None, log.task_type}]
            if len(page) < which.limit:
                break
            which = which._replace(before=page[-1].id)
        return found[offset:wanted]

    def _kinds(self, task_name: str) -> dict[str, TaskType]:
        """Return the type of each scheduled task by name. Removed tasks have logs too."""
        which = ScheduleFilter(task_name or None, removed=True, limit=_ALL)
        return {
            schedule.name: TaskType.ONCE if "at" in json.loads(schedule.trigger) else TaskType.CRON
            for schedule in self.duly.store.list_schedules(which)
        }


def _release_lock(taken: Ownership | Locked) -> None:
    if isinstance(taken, Ownership):
        taken.release()


def _is_waiting(run: RunRecord) -> bool:
    """Return whether a run was added for later and is not due yet."""
    return run.state == State.QUEUED and run.claim_number == 0 and run.due_at > run.created_at


def _log(run: RunRecord, kinds: Mapping[str, TaskType]) -> SchedulerLog:
    name = stored_tags(run.tags)[_TAG]
    kind = kinds.get(name, TaskType.ONCE)  # Only moved tasks have no schedule.
    status = LastRunStatus.RUNNING
    if run.state in FINAL:
        is_good = run.state == State.SUCCEEDED
        status = LastRunStatus.SUCCESS if is_good else LastRunStatus.FAILURE
    return SchedulerLog(run.worker_id or "", name, kind, status, run.error, moment(run.created_at))

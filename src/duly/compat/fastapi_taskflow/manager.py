"""The manager: tasks, schedules and queues with the API of fastapi-taskflow, kept by duly."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar
from weakref import WeakSet

from fastapi import BackgroundTasks, FastAPI

from duly import Duly, Task
from duly.compat.fastapi_taskflow.admission import ACCEPTER_TAG, AcceptingProcess
from duly.compat.fastapi_taskflow.backends import SnapshotBackend, address
from duly.compat.fastapi_taskflow.cutover import move_rows
from duly.compat.fastapi_taskflow.definitions import Executor, TaskflowOptions, TaskRegistrar
from duly.compat.fastapi_taskflow.encryption import fernet_of
from duly.compat.fastapi_taskflow.enqueue import (
    AddTaskOptions,
    ManagerNotStarted,
    accept_run,
    find_by_key,
    wait_for_leased_id,
)
from duly.compat.fastapi_taskflow.injection import check_parameters, inject
from duly.compat.fastapi_taskflow.loggers import FileLogger, LoggerChain, TaskObserver
from duly.compat.fastapi_taskflow.observer_dispatch import ObserverDispatcher
from duly.compat.fastapi_taskflow.one_time import OneTimeTasks, ScheduledOnce
from duly.compat.fastapi_taskflow.periodic import PeriodicTasks
from duly.compat.fastapi_taskflow.queues import QueueConfig, QueueLimits
from duly.compat.fastapi_taskflow.records import MANUAL_TAG, TaskRecord, TaskStore
from duly.compat.fastapi_taskflow.store_threads import StoreThreads
from duly.compat.fastapi_taskflow.tasks import ManagedBackgroundTasks
from duly.core.amounts import check_count, check_seconds
from duly.errors import BadOption
from duly.extend import check_worker_settings
from duly.integrations.starlette import Lifespan, ServedApp, is_in_a_request, serve, with_served_app
from duly.limits import DELAY_SECONDS

if TYPE_CHECKING:
    from duly.extend import EmbeddedWorker

F = TypeVar("F", bound=Callable[..., Any])

_DAY = 86_400.0


class TaskManager:
    """Holds tasks and runs them inside its application."""

    def __init__(
        self,
        *,
        snapshot_db: str | PathLike[str] | None = None,
        snapshot_backend: SnapshotBackend | None = None,
        snapshot_interval: float = 60.0,
        requeue_pending: bool = False,
        merged_list_ttl: float = 5.0,
        loggers: Sequence[TaskObserver] | None = None,
        log_file: str | None = None,
        log_file_max_bytes: int = 10 * 1024 * 1024,
        log_file_backup_count: int = 5,
        log_file_mode: Literal["rotate", "watched"] = "rotate",
        log_lifecycle: bool = False,
        encrypt_args_key: str | bytes | None = None,
        max_concurrent_tasks: int | None = None,
        max_sync_threads: int | None = None,
        max_process_workers: int | None = None,
        process_shutdown_timeout: float = 30.0,
        retention_days: float | None = None,
        queues: dict[str, QueueConfig] | None = None,
        max_size: int | None = None,
        retry_replaces_original: bool = True,  # noqa: ARG002 - a retry keeps the id and the record
        instance_url: str | None = None,  # noqa: ARG002 - instances share the store
        instance_tasks_prefix: str = "",  # noqa: ARG002 - as instance_url
        registry_ttl: int = 90,
        registry_heartbeat: int = 30,
        duly: Duly | None = None,
    ) -> None:
        """Check the options; docs/how-to/taskflow.md explains each."""
        # The store does the work of these options by itself, and sooner.
        _check_seconds(
            snapshot_interval=snapshot_interval,
            merged_list_ttl=merged_list_ttl,
            registry_ttl=registry_ttl,
            registry_heartbeat=registry_heartbeat,
        )
        self._served: WeakSet[FastAPI] = WeakSet()
        self._starts: list[asyncio.AbstractEventLoop] = []
        self._stack: AsyncExitStack | None = None
        self._serving: ServedApp | None = None
        self.threads = StoreThreads()
        url = address(snapshot_db, snapshot_backend)
        if duly is not None and url is not None:
            raise BadOption("pass a TaskManager either duly= or a snapshot_… option, not both")
        if duly is not None and not isinstance(duly, Duly):
            raise BadOption(f"duly must be a Duly, not {duly!r:.80}")
        self.duly = duly or Duly(url)
        self.registry = self.duly.registry
        self.fernet = None if encrypt_args_key is None else fernet_of(encrypt_args_key)
        bounds = {"max_size": max_size, "max_concurrent_tasks": max_concurrent_tasks}
        self._queues = QueueLimits(queues, **bounds)
        self._worker = _worker_settings(
            max_concurrent_tasks, max_sync_threads, max_process_workers, process_shutdown_timeout
        )
        self.keep_history(retention_days)
        check_worker_settings(self.duly, **self._worker)  # Now instead of at startup.
        file = (log_file, log_file_max_bytes, log_file_backup_count, log_file_mode)
        self.logger = _observers(loggers, file, log_lifecycle=log_lifecycle)
        logger, threads = self.logger, self.threads
        self._dispatcher = ObserverDispatcher(self.duly, logger, threads) if logger else None
        self._registrar = TaskRegistrar(
            self,
            requeue_pending=requeue_pending,
            encryption=(self.fernet, encrypt_args_key),
            wrap_with_observers=self._dispatcher.wrap if self._dispatcher else None,
            resolve_queue=self._queues.resolve,
        )
        self._periodic, self._once = PeriodicTasks(self.duly), OneTimeTasks(self.duly)
        self.store = TaskStore(self.duly, self._periodic.names)

    # -- defining --

    def task(
        self,
        *,
        executor: Executor | None = None,
        retries: int = 0,
        delay: float = 0.0,
        backoff: float = 1.0,
        persist: bool = False,
        name: str | None = None,
        requeue_on_interrupt: bool = False,
        eager: bool = False,
        priority: int | None = None,
        queue: str | None = None,
    ) -> Callable[[F], F]:
        """Make a function a task, and return the function unchanged."""
        options = TaskflowOptions(
            name, executor, retries, delay, backoff, queue, priority, persist, requeue_on_interrupt
        )

        def decorate(function: F) -> F:
            self._registrar.define(function, options, eager=eager)
            return function

        return decorate

    def schedule(
        self,
        *,
        every: float | None = None,
        cron: str | None = None,
        retries: int = 0,
        delay: float = 0.0,
        backoff: float = 1.0,
        name: str | None = None,
        run_on_startup: bool = False,
        timezone: str = "UTC",
        executor: Executor | None = None,
        queue: str | None = None,
    ) -> Callable[[F], F]:
        """Make a function a task that runs repeatedly, and return the function unchanged."""
        options = TaskflowOptions(name, executor, retries, delay, backoff, queue)
        trigger = self._periodic.trigger(every=every, cron=cron, timezone=timezone)

        def decorate(function: F) -> F:
            task = self._registrar.define(function, options)
            self._periodic.add(task, trigger, run_on_startup=run_on_startup)
            return function

        return decorate

    # -- adding --

    def add(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wish: AddTaskOptions,
    ) -> str:
        """Enqueue a call of a task, durably, and return its id."""
        worker = self._running_worker()
        task, is_eager = self._registrar.get(function)
        queue = self._queues.resolve(wish.queue or task.definition.queue)
        is_bounded = not (is_eager if wish.eager is None else wish.eager)
        if is_bounded and self._queues.is_full(queue, self.duly.store):
            found = find_by_key(self.duly, task, wish.idempotency_key)
            if found is None:
                raise self._queues.refusal(queue)
            return found.id
        reserved = {}
        if not self._registrar.is_persisted(task):
            reserved[ACCEPTER_TAG] = str(AcceptingProcess.here(wait_for_leased_id(worker)))
        if task.name in self._periodic.names:
            reserved[MANUAL_TAG] = "1"
        bound = task.using(
            key=wish.idempotency_key, queue=queue, priority=wish.priority, tags=wish.tags
        )
        return accept_run(self.duly, bound, args, kwargs, reserved=reserved).id

    def is_task(self, function: Callable[..., Any]) -> bool:
        """Return whether a function is a task of this manager."""
        return self._registrar.has(function)

    def get_tasks(self, background_tasks: BackgroundTasks) -> ManagedBackgroundTasks:
        """Return the object to add tasks with in an endpoint: `Depends(task_manager.get_tasks)`."""
        return ManagedBackgroundTasks(self, background_tasks)

    @property
    def background_tasks(self) -> Callable[[BackgroundTasks], ManagedBackgroundTasks]:
        """Another name for `get_tasks`."""
        return self.get_tasks

    async def schedule_once(
        self,
        func: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - those of the task
        run_at: datetime,
        run_key: str,
        idempotency_key: str | None = None,
        tags: dict[str, str] | None = None,
        priority: int | None = None,
        queue: str | None = None,
        **kwargs: Any,  # noqa: ANN401 - those of the task
    ) -> None:
        """Run a task once at that time. It replaces a task that waits under `run_key`.

        A time without a zone is UTC. A time in the past means now.
        """
        if self._serving is None and is_in_a_request():
            raise ManagerNotStarted
        task: Task[..., Any]
        task, _is_eager = self._registrar.get(func)
        named = self._queues.resolve(queue or task.definition.queue)
        wish = AddTaskOptions(idempotency_key, tags, None, priority, named)
        await self.threads.run(
            self._once.schedule, task, args, kwargs, wish, run_at=run_at, run_key=run_key
        )

    async def cancel_scheduled(self, run_key: str) -> bool:
        """Cancel the task that waits under a key. Return whether there was one."""
        return await self.threads.run(self._once.cancel, run_key)

    async def list_scheduled(self, before: datetime | None = None) -> list[ScheduledOnce]:
        """Return tasks that wait for their time, in order; by default those of the next year."""
        return await self.threads.run(self._once.due, before)

    def enqueue_priority(self, *_args: Any, **_options: Any) -> Never:  # noqa: ANN401
        """Raise BadOption: a task with a priority is added like any other."""
        raise BadOption("add a task with a priority with add_task(func, …, priority=…)")

    # -- reading --

    def queue_stats(self) -> list[dict[str, Any]]:
        """Return statistics of the named queues. Only the newest finished runs are counted."""
        store = self.duly.store
        finished: dict[str, int] = {}
        for row in store.summarise():
            finished[row.queue] = finished.get(row.queue, 0) + row.runs
        return self._queues.stats(store.list_queues(), finished)

    def update_queue_config(
        self, name: str, concurrency: int | None, max_size: int | None
    ) -> dict[str, Any]:
        """Change the limits of a queue, in this process and until it ends."""
        self._queues.change(name, concurrency=concurrency, max_size=max_size)
        if self._serving is not None and self._serving.worker is not None:
            self._serving.worker.limit_queue(name, concurrency)
        return next(each for each in self.queue_stats() if each["name"] == name)

    async def merged_list(self) -> list[TaskRecord]:
        """Return the newest tasks of all processes."""
        return await self.threads.run(self.store.list)

    # -- lifespan --

    def init_app(self, app: FastAPI) -> None:
        """Start and stop with an application, in addition to its own lifespan."""
        if app in self._served:
            return
        self._served.add(app)
        inner = app.router.lifespan_context
        app.router.lifespan_context = lambda api: self._lifespan(inner, api)

    def install(self, app: FastAPI) -> None:
        """Pass ManagedBackgroundTasks to endpoints that ask for `BackgroundTasks`."""
        self.init_app(app)
        inject(app, lambda: ManagedBackgroundTasks(self))

    @asynccontextmanager
    async def _lifespan(
        self,
        inner: Lifespan,
        api: Any,  # noqa: ANN401 - the application
    ) -> AsyncIterator[Mapping[str, Any]]:
        check_parameters(api)
        async with inner(api) as state:
            await self.startup()
            try:
                assert self._serving is not None  # noqa: S101 - for the type checker
                yield with_served_app(state, self._serving)
            finally:
                await self.shutdown()

    async def startup(self) -> None:
        """Start to run tasks on this event loop. Each call needs a matching `shutdown`."""
        loop = asyncio.get_running_loop()
        if self._starts and self._starts[0] is not loop:
            raise BadOption("this TaskManager has already started, on another event loop")
        self._starts.append(loop)
        if self._stack is not None:
            return
        self._stack = AsyncExitStack()
        try:
            self.threads.start()
            self._stack.callback(self.threads.stop)
            if self._dispatcher is not None:
                await self._dispatcher.start()
                self._stack.push_async_callback(self._dispatcher.stop)
            await self.threads.run(move_rows, self.duly, self._registrar, self._queues, self._once)
            live = await self.threads.run(self.duly.queues.list)
            settings = self._worker | {"queues": self._queues.for_worker(live)}
            self._serving = await self._stack.enter_async_context(serve(self.duly, settings))
            await self.threads.run(self._periodic.run_on_startup)
        except BaseException:
            await self.shutdown()
            raise

    async def shutdown(self) -> None:
        """Stop claiming, wait for the grace period, and leave the rest to the next start."""
        if self._starts:
            self._starts.pop()
        if self._stack is not None and not self._starts:
            stack, self._stack = self._stack, None
            try:
                # A forced exit of the server cancels this call. The worker then gets no grace.
                await stack.__aexit__(*sys.exc_info())
            finally:
                self._serving = None  # Only now: tasks that are still running may add tasks.

    def keep_history(self, days: float | None) -> None:
        """Delete tasks this many days after they end. None keeps them for ten years."""
        if self._serving is not None:
            raise BadOption("retention_days cannot change while the TaskManager is running")
        if days is not None and not (isinstance(days, int | float) and days > 0):
            raise BadOption(f"retention_days must be a number above 0, not {days!r:.80}")
        seconds = DELAY_SECONDS if days is None else min(days * _DAY, DELAY_SECONDS)
        self._worker |= {"retention": seconds, "dead_retention": seconds}

    def _running_worker(self) -> "EmbeddedWorker":
        serving = self._serving
        # A worker that has ended has no id, a moment before everything is shut down.
        if serving is None or serving.worker is None or serving.worker.worker_id is None:
            raise ManagerNotStarted
        return serving.worker


def _observers(
    loggers: Sequence[TaskObserver] | None,
    file: tuple[str | None, int, int, Literal["rotate", "watched"]],
    *,
    log_lifecycle: bool,
) -> LoggerChain | None:
    """Return the chain of observers, or None."""
    observers = list(loggers or [])
    name, size, count, mode = file
    if name is not None:
        observers.append(FileLogger(name, size, count, mode, log_lifecycle=log_lifecycle))
    return LoggerChain(observers) if observers else None


def _check_seconds(**options: object) -> None:
    for option, seconds in options.items():
        check_seconds(option, seconds)


def _worker_settings(
    max_concurrent_tasks: int | None,
    max_sync_threads: int | None,
    max_process_workers: int | None,
    process_shutdown_timeout: float,
) -> dict[str, Any]:
    """Return the settings of a worker. An error names the options of the manager."""
    limits = {
        "async_limit": ("max_concurrent_tasks", max_concurrent_tasks),
        "concurrency": ("max_sync_threads", max_sync_threads),
        "process_limit": ("max_process_workers", max_process_workers),
    }
    check_seconds("process_shutdown_timeout", process_shutdown_timeout)
    chosen: dict[str, Any] = {"grace": process_shutdown_timeout}
    for setting, (option, limit) in limits.items():
        if limit is not None:
            check_count(option, limit)
            chosen[setting] = limit
    return chosen

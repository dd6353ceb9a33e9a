"""The application object, `Duly`, which connects the store, the registry and the worker."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

import duly
from duly.actor import resolve_actor
from duly.api.bulk_actions import BulkActions
from duly.api.dead import DeadRuns
from duly.api.queues import Queues, Workers
from duly.api.runs import Runs
from duly.api.sessions import Sessions
from duly.app_protocol import AppProtocol
from duly.app_store import AppStore
from duly.connections import Connection, aexecute_dialogue, execute_dialogue
from duly.context import joined_connection
from duly.core.foreign_names import unknown_option
from duly.core.key import check_key, check_name
from duly.core.payload import encode_value
from duly.core.retry import Retry
from duly.errors import BadOption
from duly.events import EventBus
from duly.observe.log_queue import LogQueue
from duly.observe.logs import log_notice
from duly.registry import Registry, Tracing, is_local
from duly.run import Run
from duly.settings import AppOptions, load_settings, worker_settings
from duly.store.ops.operators import ResetKey
from duly.store.ops.steps import SendEvent
from duly.task import DEFAULT_KEY_TTL, Call, Task, accept_many
from duly.task_options import define

if TYPE_CHECKING:
    from duly.api.schedule_options import ScheduledTaskOptions
    from duly.api.schedules import Schedules
    from duly.carrier import Carrier
    from duly.locks import HeldLock, Lock, LockHolders
    from duly.worker.embedded_worker import EmbeddedWorker

P = ParamSpec("P")
R = TypeVar("R")


class Duly(AppStore):
    """An application: its tasks and its store."""

    def __init__(
        self,
        url: str | None = None,
        *,
        tracing: Tracing | None = None,
        **settings: Unpack[AppOptions],
    ) -> None:
        """Take settings that are not passed from DULY_… variables, [tool.duly], or the defaults.

        Args:
            url: The address of the store: `sqlite:///shop.db` for a file in the current folder, or
                `postgresql://user@host/database`.
            tracing: Makes spans of calls and attempts, such as `OpenTelemetry()` from
                `duly.observe.tracing`. By default there are none.
            version: The version of your application, which is shown with its workers.
            concurrency: How many `def` tasks a worker process runs at once, each on a thread.
            async_limit: How many `async def` tasks a worker process runs at once.
            process_limit: Of the tasks that `concurrency` allows, how many may run in processes.
                None means all.
            processes: How many worker processes `duly worker` runs.
            include: The modules that define tasks, such as `["shop.mail", "shop.billing"]`. Workers
                and commands import them after the module of the application.
            queues: The queues that a worker serves, each with an optional limit per worker process:
                `mail:20,default`. Empty means every queue.
            exclude_queues: Serve every queue except these: `mail,slow`. Not together with `queues`.
            lease: Seconds without a heartbeat after which other workers may take over the runs of a
                worker. At least three times `beat`.
            beat: Seconds between two heartbeats of a worker.
            grace: Seconds that running tasks have to end after SIGTERM. Then their process ends,
                and their runs are queued again, or end `interrupted` with `on_crash="hold"`.
            retention: How long runs that succeeded or were cancelled are kept after their end, in
                seconds or as a text such as "7d". With "forever" or None they are never deleted.
            dead_retention: How long dead letters are kept, in the same forms.
            act_retention: How long the audit entries of operator actions are kept, in the same
                forms. At least twelve hours.
        """
        self.settings = load_settings(url=url or None, **settings)
        super().__init__(self.settings.url)
        self._tracing = tracing
        self.registry = Registry()
        self.bus = EventBus(LogQueue())
        self.runs = Runs(self)
        self.dead = DeadRuns(self)
        self.bulk = BulkActions(self)
        self.queues = Queues(self)
        self.workers = Workers(self)
        self.sessions = Sessions(self)
        self._schedules: Schedules | None = None
        self.before_calls: list[Callable[[], None]] = []
        """Hooks that are called before a task call is accepted.

        A hook raises to refuse the call.
        """
        self._lazy_lock = threading.Lock()
        self._holders: LockHolders | None = None

    if not TYPE_CHECKING:  # A type checker would then accept every attribute.

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - it only raises
            if name in duly.__all__ and not hasattr(type(self), name):
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}: "
                    f"this is an application; `import duly` gives duly.{name}"
                )
            return super().__getattribute__(name)  # Raises the usual error, or a property's.

    # -- tasks --

    @overload
    def task(self, function: Callable[P, R]) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        retries: int | Retry = 0,
        timeout: float | None = None,
        queue: str = "default",
        priority: int = 0,
        on_crash: str = "rerun",
        executor: str | None = None,
        transaction: bool = False,
        transaction_limit: float | None = None,
        key_ttl: float | None = DEFAULT_KEY_TTL,
        unique: str = "run",
        expires: float | None = None,
        aliases: tuple[str, ...] = (),
        redact: tuple[str, ...] = (),
        carrier: "Carrier | None" = None,
        limit: int | None = None,
        limit_key: Callable[..., str] | None = None,
        retention: float | timedelta | str | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(self, function: Any = None, **options: Any) -> Any:
        """Make a function a task.

        Args:
            name: The name that is stored with the runs. By default `module:function`; a function
                inside another one needs a name.
            retries: How many retries a run has after attempts that failed, or a `Retry` that also
                sets the delays and the exceptions. When none is left, the run ends as `failed`.
            timeout: Seconds that one attempt may take. A longer attempt is ended and uses a retry;
                None means no bound.
            queue: The queue that the runs wait in.
            priority: Within a queue, runs with a higher number start first.
            on_crash: "rerun" runs a task again if its worker died. "hold" ends such a run as
                `interrupted`, and a person decides. With "hold", only exceptions that a
                `Retry(…, on=(…))` names are retried.
            executor: Where the task runs: "loop" for `async def`, "thread" for `def`, or "process"
                for a subprocess. By default the one of the first two that fits the function.
            transaction: Whether what the task writes through `current().connection` commits
                together with the completion of its run. For `def` tasks on threads only.
            transaction_limit: Seconds that this transaction may be open before the attempt fails
                with TransactionTooLong. By default 5 on SQLite and 60 on PostgreSQL.
            key_ttl: Seconds that a key holds after the end of its run. None means forever.
            unique: "run": calls with the same key mean the same run until `key_ttl` after its end.
                "active": only while it is queued or running.
            expires: Seconds from the call after which a run is cancelled that has not started. None
                means never.
            aliases: Earlier names of the task, under which runs may still be stored.
            redact: Names of arguments, and of keys and fields in them, whose values duly never
                shows.
            carrier: The engine whose workers run the task, such as a `CeleryCarrier`. None means
                workers of duly.
            limit: How many runs of the task may be running at once, over all workers. None means
                any number.
            limit_key: A function that gets the arguments of a call and returns a text of at most
                255 bytes. The limit then applies to each text separately.
            retention: How long ended runs are kept: in seconds, as a timedelta, or as a text such
                as "90d" or "forever". By default as the settings say.
        """
        if function is not None:
            return self._register_task(function, options)
        return lambda found: self._register_task(found, options)

    def _register_task(
        self, function: Callable[..., Any], options: dict[str, Any]
    ) -> Task[..., Any]:
        known = define.__kwdefaults__ or {}
        unknown = sorted(options.keys() - known.keys())
        if unknown:
            raise BadOption(unknown_option(unknown[0], known))
        definition = replace(define(function, **options), tracing=self._tracing)
        self.registry.add(definition)
        if definition.carrier is not None:
            definition.carrier.attach(self)
        return Task(self, definition)

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        seconds_field: Literal["first", "last"] | None = None,
        name: str | None = None,
        **options: "Unpack[ScheduledTaskOptions]",
    ) -> Callable[[Callable[[], R]], Task[[], R]]:
        """Make a function a task that runs at the times of a cron expression.

        An expression of six fields needs `seconds_field`, which says which field holds the seconds.
        The options are those of a schedule and those of `@app.task`. Without `name`, the schedule
        gets the name of its task. A function defined inside another function needs `name`, which is
        then also the name of its task.
        """
        when = {"cron": expression, "tz": tz, "seconds_field": seconds_field}
        return self._schedule(name, options, when)

    def every(
        self,
        interval: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        name: str | None = None,
        **options: "Unpack[ScheduledTaskOptions]",
    ) -> Callable[[Callable[[], R]], Task[[], R]]:
        """Make a function a task that runs repeatedly, with a fixed interval of elapsed time.

        The options are those of a schedule and those of `@app.task`. Without `name`, the schedule
        gets the name of its task. A function defined inside another function needs `name`, which is
        then also the name of its task.
        """
        total = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        return self._schedule(name, options, {"every": (interval or timedelta()) + total})

    def _schedule(
        self,
        name: str | None,
        options: "ScheduledTaskOptions",
        when: dict[str, Any],
    ) -> Callable[[Callable[[], R]], Task[[], R]]:
        # Programs without schedules should not pay for importing calendars.
        from duly.api.schedule_options import SCHEDULE_OPTIONS  # noqa: PLC0415
        from duly.api.schedules import trigger_of  # noqa: PLC0415

        trigger = trigger_of(**when)
        schedule_options = {key: value for key, value in options.items() if key in SCHEDULE_OPTIONS}
        task_options = {key: value for key, value in options.items() if key not in SCHEDULE_OPTIONS}

        def decorate(function: Callable[[], R]) -> Task[[], R]:
            # A local function has no unique name, so its task gets the name of the schedule.
            name_option = {"name": name} if is_local(function) else {}
            task = self._register_task(function, task_options | name_option)
            self.schedules.define(name or task.name, task, trigger, **schedule_options)  # type: ignore[arg-type]
            return task

        return decorate

    @property
    def schedules(self) -> "Schedules":
        """The cron, interval and one-time schedules."""
        if self._schedules is None:
            # Programs that only enqueue should not pay for importing calendars.
            from duly.api.schedules import Schedules  # noqa: PLC0415

            with self._lazy_lock:
                self._schedules = self._schedules or Schedules(self)
        return self._schedules

    # -- enqueueing --

    def enqueue_many(self, calls: Iterable[Call[R]]) -> list[Run[R]]:
        """Accept many calls. All of them are durable when this returns.

        Each transaction contains up to 2,000 calls, or fewer if their arguments exceed 8 MiB.
        Inside the transaction of a task, all calls become part of that transaction.

        If this raises StoreUnavailable, some of the calls may have been accepted. Give the calls
        keys, so that you can repeat them.
        """
        return accept_many(self, calls)

    def reset_key(self, task: Task[..., Any] | str, key: str, *, actor: str | None = None) -> bool:
        """Forget a key under all names of a task, so that the next call with it makes a new run."""
        name = task.name if isinstance(task, Task) else check_name("task name", task)
        names = (name, *self.registry.other_names(name))
        ops = [ResetKey(each, check_key(key), resolve_actor(actor)) for each in names]
        return any(self.store.apply(ops))

    def send_event(
        self, name: str, payload: object = None, *, connection: Connection = None
    ) -> bool:
        """Record that an event has happened. Runs that `wait_for` it continue.

        Return whether the event is new. The first payload counts, and later calls change nothing.
        On a connection of the caller, or inside the transaction of a task, the event takes effect
        when that transaction commits.
        """
        op = SendEvent(check_name("event", name), encode_value(payload))
        store = self.store
        if connection is None:
            connection = joined_connection(store)
        if connection is not None:
            return execute_dialogue(connection, partial(store.send_on_connection, op), store.wake)
        is_news = store.do(op)
        return bool(is_news)

    async def asend_event(
        self, name: str, payload: object = None, *, connection: Connection = None
    ) -> bool:
        """Send an event without blocking the event loop; see `send_event`."""
        if connection is None and joined_connection(self.store) is not None:
            # The connection of a task's transaction can only be used in the task's own thread.
            return self.send_event(name, payload)
        if connection is None:
            return await asyncio.to_thread(self.send_event, name, payload)
        op = SendEvent(check_name("event", name), encode_value(payload))
        store = self.store
        return await aexecute_dialogue(
            connection, partial(store.send_on_connection, op), store.wake
        )

    def lock(
        self,
        name: str,
        *,
        ttl: float | timedelta = 30,
        timeout: float | None = None,
        on_lost: Callable[["HeldLock"], None] | None = None,
    ) -> "Lock":
        """Return a lock for `with` or `async with`, or to `acquire`. One process can hold it.

        The lock is renewed while it is held. `ttl` is how long it stays locked after its holder
        died.
        """
        # Programs without locks should not pay for importing them.
        from duly.locks import Lock, LockHolders  # noqa: PLC0415

        with self._lazy_lock:
            self._holders = holders = self._holders or LockHolders()
        app = self._lock_app()
        return Lock(app, name, holders=holders, ttl=ttl, timeout=timeout, on_lost=on_lost)

    def _lock_app(self) -> AppProtocol:
        """Return the application whose store holds the locks. A subclass may name another one."""
        return self

    # -- workers --

    def worker(
        self,
        *,
        concurrency: int | None = None,
        async_limit: int | None = None,
        process_limit: int | None = None,
        queues: str | None = None,
        include: str | Sequence[str] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        **settings: float,
    ) -> "EmbeddedWorker":
        """Return a worker for this process: `with app.worker(): …` or `app.worker().drain()`.

        Settings that are not passed come from the application.
        """
        # Programs that only enqueue should not pay for importing the worker.
        from duly.worker.app_loader import prepare_to_work  # noqa: PLC0415
        from duly.worker.embedded_worker import EmbeddedWorker  # noqa: PLC0415

        chosen = worker_settings(
            self.settings.worker(),
            concurrency=concurrency,
            async_limit=async_limit,
            process_limit=process_limit,
            queues=queues,
            include=include,
            **settings,
        )
        store = self.store
        for notice in store.notices:
            log_notice(notice)
        return EmbeddedWorker(
            store,
            self.registry,
            chosen,
            self.bus,
            loop,
            before_start=partial(prepare_to_work, self, chosen.include),
        )

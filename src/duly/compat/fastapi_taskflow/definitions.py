"""Converts a function with fastapi-taskflow options to a duly task definition."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from duly import Retry, Task
from duly.compat.fastapi_taskflow.admission import admission
from duly.compat.fastapi_taskflow.encryption import EncryptedCodec
from duly.core.retry import NO_RETRIES
from duly.errors import BadOption
from duly.limits import DELAY_SECONDS
from duly.registry import task_name
from duly.task_options import define

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

    from duly.compat.fastapi_taskflow.manager import TaskManager

Executor = Literal["async", "thread", "process"]
_EXECUTORS = {"async": "loop", "thread": "thread", "process": "process"}


class TaskflowOptions(NamedTuple):
    """The options of a task, as fastapi-taskflow names them."""

    name: str | None = None
    executor: Executor | None = None
    retries: int = 0
    delay: float = 0.0
    backoff: float = 1.0
    queue: str | None = None
    priority: int | None = None
    persist: bool = False
    requeue_on_interrupt: bool = False


class TaskRegistrar:
    """The tasks of one manager, by function."""

    def __init__(
        self,
        manager: "TaskManager",
        *,
        requeue_pending: bool,
        encryption: "tuple[Fernet | None, str | bytes | None]",
        wrap_with_observers: Callable[[Callable[..., Any]], Callable[..., Any]] | None,
        resolve_queue: Callable[[str | None], str],
    ) -> None:
        """Set up the registrar.

        With `requeue_pending`, the runs of all tasks are persisted, not only of those with
        `persist`.
        """
        self._manager = manager
        self._requeue_pending = requeue_pending
        self._encryption = encryption
        self._wrap_with_observers = wrap_with_observers
        self._resolve_queue = resolve_queue
        self._tasks: dict[Callable[..., Any], tuple[Task[..., Any], bool]] = {}
        self._persisted: set[str] = set()

    def define(
        self, function: Callable[..., Any], options: TaskflowOptions, *, eager: bool = False
    ) -> Task[..., Any]:
        """Make a function a task. Raise an error if its options cannot be supported.

        A persisted task that is not requeued on interrupt is held after a crash. For a task that is
        not persisted, `admission` decides at the claim, because only then is it known which process
        is gone. By default, calls of an `eager` task are accepted even if its queue is full.
        """
        self._check_executor(function, options.executor)
        persisted = options.persist or self._requeue_pending
        hold = persisted and not options.requeue_on_interrupt
        retry = Retry(
            options.retries,
            options.delay,
            options.backoff,
            max_delay=DELAY_SECONDS,
            jitter=False,
            # An attempt that raised has ended properly, so another attempt is not a second start.
            on=(Exception,) if hold else (),
        )
        wrap = self._wrap_with_observers
        definition = define(
            function if wrap is None else wrap(function),
            name=options.name or _name(function),
            retries=retry if options.retries else NO_RETRIES,
            on_crash="hold" if hold else "rerun",
            executor=None if options.executor is None else _EXECUTORS[options.executor],
            queue=self._resolve_queue(options.queue),
            priority=options.priority or 0,
            key_ttl=None,
        )
        app = self._manager.duly
        admit = admission(lambda: app.store, persisted=persisted)
        definition = replace(definition, admit=admit, wrapped=function)
        fernet, key = self._encryption
        if fernet is not None and key is not None:
            definition = replace(definition, codec=EncryptedCodec(definition.codec, fernet, key))
        app.registry.add(definition)
        task: Task[..., Any] = Task(app, definition)
        self._tasks[function] = task, eager
        self._persisted.discard(task.name)
        if persisted:
            self._persisted.add(task.name)
        return task

    def get(self, function: Callable[..., Any]) -> tuple[Task[..., Any], bool]:
        """Return the task of a function, and whether it is eager."""
        try:
            return self._tasks[function]
        except (KeyError, TypeError):
            raise BadOption(
                f"{function!r} is not a task of this TaskManager, and only tasks outlive this "
                "process: decorate it with @task_manager.task()"
            ) from None

    def has(self, function: Callable[..., Any]) -> bool:
        """Return whether a function is a task."""
        try:
            return function in self._tasks
        except TypeError:  # The object is not hashable.
            return False

    def find(self, name: str) -> Task[..., Any] | None:
        """Return the task with that name or whose function has it. None if not exactly one does."""
        found = {
            task.name: task
            for function, (task, _is_eager) in self._tasks.items()
            if name in {function.__name__, task.name}
        }
        return next(iter(found.values())) if len(found) == 1 else None

    def is_persisted(self, task: Task[..., Any]) -> bool:
        """Return whether the task's runs outlive the process that enqueued them."""
        return task.name in self._persisted

    def _check_executor(self, function: Callable[..., Any], executor: str | None) -> None:
        if executor is not None and executor not in _EXECUTORS:
            raise BadOption(
                f'executor must be "async", "thread" or "process", not {executor!r:.80}'
            )
        is_async = inspect.iscoroutinefunction(function)
        if executor == "async" and not is_async:
            raise BadOption(
                "executor='async' needs an async def function; omit it for a def function"
            )
        if executor == "thread" and is_async:
            raise BadOption(
                "executor='thread' needs a plain def function; omit it for an async def function"
            )
        if executor != "process":
            return
        module_globals = getattr(function, "__globals__", {}).values()
        is_nested = "<locals>" in function.__qualname__
        if is_nested or all(each is not self._manager for each in module_globals):
            raise BadOption(
                f'executor="process" imports the module of {function.__qualname__}() again: the '
                "function must be module-level, and the TaskManager must have its own name "
                "there"
            )


def _name(function: Callable[..., Any]) -> str | None:
    """Return the task name of a function. Return None for objects that `define` refuses."""
    # Applications and their tasks are often created inside a function.
    return task_name(function, nested=True) if inspect.isroutine(function) else None

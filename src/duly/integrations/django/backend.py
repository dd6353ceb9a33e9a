"""The `django.tasks` backend that keeps its runs in a Django database."""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections
from django.utils import timezone

from duly import Duly, Run
from duly import Task as EngineTask
from duly.core.codec import Codec
from duly.core.states import State
from duly.errors import BadOption, RunNotFound
from duly.extend import EndedAttempt, on_attempt_end, report_error
from duly.integrations.django.app import DjangoDuly, app_for
from duly.integrations.django.codec import PositionKeepingCodec
from duly.integrations.django.executions import once_options
from duly.integrations.django.options import CALL_OPTIONS, DEFINITION_OPTIONS, DulyTask, options_of
from duly.integrations.django.results import new_result, result_of
from duly.integrations.django.task_body import (
    ON_EXTERNAL_CONNECTION,
    RECENT_EXCEPTIONS,
    body_of,
    task_of,
)
from duly.integrations.django.task_exceptions import exception_for
from duly.integrations.django.task_modules import load_tasks
from duly.integrations.django.task_transaction import with_completion
from duly.integrations.django.tasks_api import (
    BaseTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
    task_finished,
    task_started,
)
from duly.observe.log_queue import LogQueue
from duly.task_options import define

_OPTIONS = frozenset({"database", "url"})
_signal_executor = ThreadPoolExecutor(1, thread_name_prefix="duly-signals")
_subscribed_apps: "WeakSet[Duly]" = WeakSet()
"""The applications whose attempts are reported to Django. A backend exists once per thread."""


class DulyBackend(BaseTaskBackend):
    """Enqueues runs in the open transaction and never loses them."""

    task_class = DulyTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.problem = _problem(alias, self.options)
        """The error in the backend's settings. `check` reports it, and using the backend raises it.
        """

    @property
    def app(self) -> Duly:
        """The application that has the tasks of this backend."""
        if self.problem is not None:
            raise ImproperlyConfigured(self.problem)
        return app_for(self.alias, self.options)

    def validate_task(self, task: Task) -> None:
        """Reject tasks that cannot run, and register the others with the engine."""
        super().validate_task(task)
        known = self.app.registry.find(task.module_path)
        if known is None or task_of(known).func is not task.func:
            self._register(task)

    def _register(self, task: Task) -> None:
        options = {**once_options(task.func), **options_of(task, DEFINITION_OPTIONS)}
        around: Callable[[], AbstractContextManager[None]] = nullcontext
        if options.get("transaction"):
            if not isinstance(self.app, DjangoDuly):
                raise BadOption(
                    f"{task.module_path} has transaction=True, but TASKS[{self.alias!r}] uses a "
                    "url, which is not a database of Django's models"
                )
            around = partial(with_completion, self.app.database)
        definition = define(
            body_of(task, self._send_started, around),
            name=task.module_path,
            queue=task.queue_name,
            priority=task.priority,
            **options,
        )
        codec = PositionKeepingCodec(definition.function, redact=definition.redact)
        self.app.registry.add(replace(definition, codec=codec, wrapped=task.func))

    # -- enqueueing --

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: dict[str, Any]) -> TaskResult:
        """Enqueue a run in the open transaction. Without one, it is durable at once."""
        self.validate_task(task)
        args, kwargs = normalize_json(list(args)), normalize_json(kwargs)
        definition = self.app.registry.get(task.module_path)
        bound = EngineTask[..., Any](self.app, definition).using(
            queue=task.queue_name,
            priority=task.priority,
            at=_aware(task.run_after),
            connection=self._connection(),
            **self._options_of_call(task, definition.codec, tuple(args), kwargs),
        )
        run = bound.enqueue(*args, **kwargs)
        result = (
            new_result(task, run.id, args, kwargs, self.alias) if run.new else self._result_of(run)
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def _connection(self) -> Any:  # noqa: ANN401 - one of Django's
        return connections[self.app.database] if isinstance(self.app, DjangoDuly) else None

    @staticmethod
    def _options_of_call(
        task: Task, codec: Codec, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        found = options_of(task, CALL_OPTIONS | {"unique", "expires"})
        key = found.get("key")
        if not callable(key):
            return found
        codec.encode(args, kwargs)  # Rejects a call that does not match the task's function.
        return found | {"key": key(*args, **kwargs)}

    # -- results --

    def get_result(self, result_id: str) -> TaskResult:
        """Return the result of a run by its id."""
        try:
            return self._result_of(self.app.runs.get(str(result_id)))
        except RunNotFound as error:
            raise TaskResultDoesNotExist(str(error)) from None

    def _result_of(self, run: Run[Any]) -> TaskResult:
        record = run.record
        definition = self.app.registry.find(record.task)
        if definition is None:
            # A stored run names no module to import, so load all task modules of the project.
            load_tasks()
            definition = self.app.registry.find(record.task)
        if definition is None:
            raise TaskResultDoesNotExist(
                f"run {run.id} belongs to {record.task}, but no tasks.py module and no views of "
                "this project define that task"
            )
        return result_of(task_of(definition), definition, record, run.attempts(), self.alias)

    # -- signals to Django --

    def _send_started(self, run_id: str) -> TaskResult:
        result = self._result_of(self.app.runs.get(run_id))
        task_started.send(type(self), task_result=result)
        return result

    def tell_ends(self) -> None:
        """Send Django's signal for each run that ends in this process. Safe to call repeatedly."""
        if self.app not in _subscribed_apps:
            _subscribed_apps.add(self.app)
            on_attempt_end(self.app, self._on_attempt_end)
            # Django's own receiver of the signal logs failures as errors, with their tracebacks.
            self.app.bus.log = LogQueue(failures=logging.INFO)

    def _on_attempt_end(self, ended: EndedAttempt) -> None:
        raised = RECENT_EXCEPTIONS.pop(ended.run_id)
        if not ended.is_final:
            return
        if ON_EXTERNAL_CONNECTION.get():
            self._send_finished(ended.run_id, raised)
        else:
            # Receivers may use the database, and this may be the thread of an event loop.
            _signal_executor.submit(self._send_finished_on_thread, ended.run_id, raised)

    def _send_finished_on_thread(self, run_id: str, raised: Exception | None) -> None:
        try:
            self._send_finished(run_id, raised)
        except Exception as error:  # noqa: BLE001 - any error of a receiver, reported only here
            report_error(self.app, "a receiver of task_finished", error)
        finally:
            close_old_connections()

    def _send_finished(self, run_id: str, raised: Exception | None) -> None:
        run = self.app.runs.get(run_id)
        result = self._result_of(run)
        if run.state is not State.FAILED:
            task_finished.send(type(self), task_result=result)
            return
        try:
            # Django's own receiver logs the exception that is being handled.
            raise exception_for(run, self.app.registry, raised)  # noqa: TRY301
        except Exception:  # noqa: BLE001 - the task's own
            task_finished.send(type(self), task_result=result)

    def check(self, **_options: Any) -> Iterable[CheckMessage]:  # noqa: ANN401 - Django's
        """Return the errors in the backend's settings."""
        from duly.integrations.django.checks import check_backend  # noqa: PLC0415 - only when needed

        return check_backend(self)


def backends() -> list[DulyBackend]:
    """Return the backends of this project that are duly backends."""
    from duly.integrations.django.tasks_api import task_backends  # noqa: PLC0415 - reads settings

    found = (task_backends[alias] for alias in task_backends.settings)
    return [backend for backend in found if isinstance(backend, DulyBackend)]


def backend_of(alias: str) -> DulyBackend:
    """Return the backend of an alias. Raise ImproperlyConfigured if it is not a duly backend."""
    for backend in backends():
        if backend.alias == alias:
            return backend
    raise ImproperlyConfigured(
        f"TASKS has no {alias!r} whose BACKEND is duly.integrations.django.DulyBackend"
    )


def _problem(alias: str, options: dict[str, Any]) -> str | None:
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        known = ", ".join(sorted(_OPTIONS))
        return f"TASKS[{alias!r}]['OPTIONS'] has no {unknown[0]!r}; the options are {known}"
    if options.keys() >= _OPTIONS:
        return f"TASKS[{alias!r}]['OPTIONS'] must name either a Django database or a url, not both"
    return None


def _aware(moment: Any) -> Any:  # noqa: ANN401 - a datetime or None
    if moment is None or timezone.is_aware(moment):
        return moment
    return timezone.make_aware(moment)

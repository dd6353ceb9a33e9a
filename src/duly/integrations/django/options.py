"""The options of duly that a Django task can have."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from duly import Retry
from duly.errors import BadOption
from duly.integrations.django.tasks_api import TASK_CLASSES, Task
from duly.task_options import define

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = "_duly_options"
_UNSUPPORTED = frozenset({"name", "queue", "priority", "carrier"})
"""Django has its own options for these."""
DEFINITION_OPTIONS = frozenset(define.__kwdefaults__ or ()) - _UNSUPPORTED
CALL_OPTIONS = frozenset({"key", "tags"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DulyTask(Task):
    """A task with duly's options besides Django's: `@task(retries=5, on_crash="hold")`."""

    retries: int | Retry = 0
    timeout: float | None = None
    on_crash: str = "rerun"
    expires: float | None = None
    unique: str = "run"
    redact: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    transaction: bool = False
    """Whether writes through Django's models commit together with the task's completion."""
    transaction_limit: float | None = None
    key: str | Callable[..., str] | None = None
    """The key of a call, or a function that returns it for the arguments of the call."""
    tags: dict[str, str] | None = None

    def using(self, **changes: Any) -> "DulyTask":  # noqa: ANN401 - Django's options and duly's
        """Return the task with other options, for calls made through it."""
        known = set(self.__dataclass_fields__) - {"func", "takes_context"}
        unknown = sorted(changes.keys() - known)
        if unknown:
            raise BadOption(
                f"there is no option {unknown[0]!r}; the options are {', '.join(sorted(known))}"
            )
        return replace(
            self, **{name: value for name, value in changes.items() if value is not None}
        )


def duly_options(**options: Any) -> Callable[[F], F]:  # noqa: ANN401 - those of DulyTask
    """Set duly options of a function. Put it below a Django `@task` that does not accept them."""
    unknown = sorted(options.keys() - DEFINITION_OPTIONS - CALL_OPTIONS)
    if unknown:
        known = ", ".join(sorted(DEFINITION_OPTIONS | CALL_OPTIONS))
        raise BadOption(f"there is no option {unknown[0]!r}; the options are {known}")

    def decorate(function: F) -> F:
        if isinstance(function, TASK_CLASSES):
            raise BadOption("put @duly_options(…) below @task(), next to the function")
        setattr(function, _OPTIONS, options)
        return function

    return decorate


def options_of(task: Task, names: frozenset[str]) -> dict[str, Any]:
    """Return the duly options of a task, set on its function or on the task."""
    given: dict[str, Any] = getattr(task.func, _OPTIONS, {})
    found = {name: value for name, value in given.items() if name in names}
    if isinstance(task, DulyTask):
        fields = task.__dataclass_fields__
        for name in names & set(fields):
            value = getattr(task, name)
            if value != fields[name].default:
                found[name] = value
    return found

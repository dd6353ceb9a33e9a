"""A backend that is not duly's: it keeps what is enqueued until a test delivers it."""

from typing import Any

from duly.clock import new_id
from duly.integrations.django.results import new_result
from duly.integrations.django.tasks_api import BaseTaskBackend, Task, TaskResult

Delivery = tuple[Task, list[Any], dict[str, Any]]
waiting: list[Delivery] = []


class OtherBackend(BaseTaskBackend):
    """Delivers as often as it is asked to."""

    supports_async_task = True
    supports_priority = True

    def enqueue(self, task: Task, args: list[Any], kwargs: dict[str, Any]) -> TaskResult:
        self.validate_task(task)
        waiting.append((task, list(args), dict(kwargs)))
        return new_result(task, new_id(), args, kwargs, self.alias)


def deliver(delivery: Delivery) -> Any:
    """Call the task, as a worker of this backend would."""
    task, args, kwargs = delivery
    return task.call(*args, **kwargs)


class BrokenBackend(OtherBackend):
    """Cannot be reached."""

    def enqueue(self, *_call: Any) -> TaskResult:
        raise ConnectionError("its broker is away")

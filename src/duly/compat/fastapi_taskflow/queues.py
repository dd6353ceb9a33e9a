"""Named queues with limits on running and waiting tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from duly.core.amounts import check_count
from duly.core.key import check_queue
from duly.core.record import QueueRecord
from duly.errors import BadOption, QueueFull
from duly.limits import COUNT_CAP
from duly.observe.logs import log_notice
from duly.store.protocol import Store

DEFAULT = "default"

"""Waiting tasks are counted only up to this number, so a higher limit would never apply."""


@dataclass
class QueueConfig:
    """The limits of one queue. None means no limit."""

    concurrency: int | None = None
    """How many of its tasks run at once in each process."""
    max_size: int | None = None
    """How many of its tasks may wait, in all processes together."""

    def __post_init__(self) -> None:
        """Reject invalid limits."""
        for what in ("concurrency", "max_size"):
            value = getattr(self, what)
            if value is not None:
                check_count(what, value)
        if self.max_size is not None and self.max_size > COUNT_CAP:
            raise BadOption(
                f"max_size must be at most {COUNT_CAP:,}, because no more tasks are counted, "
                "or None"
            )


class QueueFullError(QueueFull, RuntimeError):
    """A queue is full; the task was not enqueued."""

    def __init__(self, queue: str, max_size: int) -> None:
        super().__init__(queue, max_size)
        message = (
            f"queue {queue!r} is full: {max_size} tasks wait, and max_size allows no more; try "
            "again later, or raise max_size"
        )
        self.args = (message,)


class QueueLimits:
    """The queues of one manager. If none are named, every name is a queue without limits."""

    def __init__(
        self,
        queues: dict[str, QueueConfig] | None,
        *,
        max_size: int | None,
        max_concurrent_tasks: int | None,
    ) -> None:
        self._configs = _checked(queues or {})
        if queues is not None or max_size is not None:
            others = QueueConfig(max_concurrent_tasks, max_size)
            self._configs.setdefault(DEFAULT, others)
        self._rejected = dict.fromkeys(self._configs, 0)

    def for_worker(self, live: Sequence[QueueRecord]) -> str | None:
        """Return the queues as `app.worker` accepts them.

        Queues that an earlier version named and that still contain runs are served like the
        default.
        """
        if not self._configs:
            return None
        others = {queue.name for queue in live} - self._configs.keys()
        configs = self._configs | dict.fromkeys(sorted(others), self._configs[DEFAULT])
        return ",".join(
            name if config.concurrency is None else f"{name}:{config.concurrency}"
            for name, config in configs.items()
        )

    def resolve(self, name: str | None) -> str:
        """Return the queue of a name. For an unknown name, log that and return "default"."""
        name = name or DEFAULT
        if self._configs and name not in self._configs:
            known = ", ".join(sorted(self._configs))
            # A Python warning would prevent the task from being added where warnings are errors.
            log_notice(f'there is no queue {name!r}, so "default" is used; the queues are {known}')
            return DEFAULT
        return name

    def is_full(self, name: str, store: Store) -> bool:
        """Return whether a queue is full now. Other processes may add tasks at the same time."""
        config = self._configs.get(name)
        if config is None or config.max_size is None:
            return False
        found = next((each for each in store.list_queues() if each.name == name), None)
        return found is not None and _pending(found) >= config.max_size

    def refusal(self, name: str) -> QueueFullError:
        """Count a rejected task, and return the error to raise."""
        self._rejected[name] += 1
        return QueueFullError(name, self._configs[name].max_size or 0)

    def change(self, name: str, *, concurrency: int | None, max_size: int | None) -> QueueConfig:
        """Set the limits of a queue, and return them."""
        if not self._configs:
            raise BadOption("no queue has limits here; define queues with queues={…} or max_size=")
        if name not in self._configs:
            known = ", ".join(sorted(self._configs))
            raise KeyError(f"there is no queue {name!r}; the queues are {known}")
        changed = replace(self._configs[name], concurrency=concurrency, max_size=max_size)
        self._configs[name] = changed
        return changed

    def stats(self, live: Sequence[QueueRecord], finished: dict[str, int]) -> list[dict[str, Any]]:
        """Return the statistics of each queue, ordered by name."""
        waiting = {queue.name: queue for queue in live}
        nothing = QueueRecord("", paused=False, ready=0, waiting=0, running=0)
        return [
            {
                "name": name,
                "concurrency": config.concurrency,
                "max_size": config.max_size,
                "pending": _pending(found := waiting.get(name, nothing)),
                "running": found.running,
                "finished": finished.get(name, 0),
                "rejected": self._rejected[name],
            }
            for name, config in sorted(self._configs.items())
        ]


def _checked(queues: dict[str, QueueConfig]) -> dict[str, QueueConfig]:
    if not isinstance(queues, dict):
        raise BadOption(f"queues must be a dict of QueueConfigs by name, not {queues!r:.80}")
    for name, config in queues.items():
        # A worker parses name:limit, and would serve another queue.
        if ":" in check_queue(name):
            raise BadOption(f"queue {name!r}: a name must not contain a colon")
        if not isinstance(config, QueueConfig):
            raise BadOption(f"queue {name!r} needs a QueueConfig, not {config!r:.80}")
    return dict(queues)


def _pending(queue: QueueRecord) -> int:
    """Return how many tasks could run if there were room.

    Retries and one-time tasks wait for a time.
    """
    return queue.ready + queue.waiting if queue.paused else queue.ready

"""`app.queues` and `app.workers`."""

from collections.abc import Sequence
from types import EllipsisType

from duly.actor import resolve_actor
from duly.app_protocol import AppProtocol
from duly.core.amounts import check_count
from duly.core.key import check_queue
from duly.core.record import QueueRecord, WorkerRecord
from duly.errors import BadOption
from duly.limits import QUEUE_SIZE, TICK_BATCH
from duly.run import check_reason
from duly.store.ops.operators import LimitQueue, PauseQueue, SetQueueCapacity
from duly.store.ops.upkeep import Tick


class Queues:
    """Named queues."""

    def __init__(self, host: AppProtocol) -> None:
        self._app = host

    def list(self) -> Sequence[QueueRecord]:
        """Return the queues that have live runs or were paused."""
        return self._app.store.list_queues()

    def pause(self, name: str, *, actor: str | None = None, reason: str = "") -> None:
        """Start no runs of this queue until it is resumed. Running ones continue."""
        self._set(name, paused=True, actor=actor, reason=reason)

    def resume(self, name: str, *, actor: str | None = None, reason: str = "") -> None:
        """Resume a paused queue."""
        self._set(name, paused=False, actor=actor, reason=reason)

    def limit(
        self,
        name: str,
        limit: int | EllipsisType | None = ...,
        *,
        max_size: int | EllipsisType | None = ...,
        actor: str | None = None,
        reason: str = "",
    ) -> None:
        """Limit how many of its runs may be running at once, over all workers. None means no limit.

        `max_size` limits approximately how many runs may wait for workers. Further calls raise
        QueueFull.
        """
        how = (resolve_actor(actor), check_reason(reason))
        queue = check_queue(name)
        ops: list[LimitQueue | SetQueueCapacity] = []
        if limit is not ...:
            ops.append(LimitQueue(queue, _count("a limit", limit), *how))
        if max_size is not ...:
            ops.append(SetQueueCapacity(queue, _count("max_size", max_size), *how))
        if not ops:
            raise BadOption(
                "pass a limit: how many runs of the queue may run at once, or with max_size=… how "
                "many may wait in it"
            )
        self._app.store.apply(ops)
        self._app.store.queue_capacity.forget()

    def _set(self, name: str, *, paused: bool, actor: str | None, reason: str) -> None:
        who = resolve_actor(actor)
        op = PauseQueue(check_queue(name), paused, who, check_reason(reason))
        self._app.store.do(op)
        if not paused:
            # Without the tick, workers would find the parked runs only after some seconds. Workers
            # that the first op woke may have looked before the tick.
            self._app.store.do(Tick(TICK_BATCH))
            self._app.store.wake()


def _count(what: str, value: int | None) -> int | None:
    if value is not None:
        check_count(what, value)
    if what == "max_size" and value is not None and value > QUEUE_SIZE:
        raise BadOption(
            f"max_size must be at most {QUEUE_SIZE:,}, because duly counts the waiting runs"
        )
    return value


class Workers:
    """Worker processes."""

    def __init__(self, host: AppProtocol) -> None:
        self._app = host

    def list(self) -> Sequence[WorkerRecord]:
        """Return workers, newest first."""
        return self._app.store.list_workers()

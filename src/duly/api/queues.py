"""`app.queues` and `app.workers`."""

from collections.abc import Sequence

from duly.actor import acting
from duly.core.key import check_name
from duly.core.record import QueueRecord, WorkerRecord
from duly.errors import BadOption
from duly.host import Host
from duly.limits import TICK_BATCH
from duly.run import check_reason
from duly.store.admin_ops import LimitQueue
from duly.store.ops import PauseQueue, Tick


class Queues:
    """Named queues."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def list(self) -> Sequence[QueueRecord]:
        """Return the queues that have live runs or were paused."""
        return self._host.store.list_queues()

    def pause(self, name: str, *, actor: str | None = None, reason: str = "") -> None:
        """Let nothing of this queue start until it is resumed; what runs goes on."""
        self._set(name, paused=True, actor=actor, reason=reason)

    def resume(self, name: str, *, actor: str | None = None, reason: str = "") -> None:
        """Let the queue go on."""
        self._set(name, paused=False, actor=actor, reason=reason)

    def limit(
        self, name: str, limit: int | None, *, actor: str | None = None, reason: str = ""
    ) -> None:
        """Let at most so many of its runs be running at once, over all workers; None is any."""
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int) or limit < 1
        ):
            raise BadOption(f"a limit is a whole number of at least 1, or None, not {limit!r}")
        op = LimitQueue(check_name("queue", name), limit, acting(actor), check_reason(reason))
        self._host.store.apply([op])

    def _set(self, name: str, *, paused: bool, actor: str | None, reason: str) -> None:
        who = acting(actor)
        op = PauseQueue(check_name("queue", name), paused, who, check_reason(reason))
        # What was parked goes on at once; without the tick, workers look for it every few seconds.
        self._host.store.apply([op] if paused else [op, Tick(TICK_BATCH)])


class Workers:
    """Worker processes."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def list(self) -> Sequence[WorkerRecord]:
        """Return workers, newest first."""
        return self._host.store.list_workers()

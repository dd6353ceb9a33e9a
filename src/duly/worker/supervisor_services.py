"""What a keeper does on its service loop: settle dead children, and notice suspects."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from duly.clock import monotonic
from duly.errors import StoreError
from duly.events import EventBus, SupervisorReady
from duly.limits import PAGE
from duly.settings import WorkerSettings
from duly.store.protocol import Store
from duly.worker.services.recovery import recover_worker

SUSPECT_PAUSE = 1.0
_LOOK_EVERY = 20
_REGISTRATION_LOOK_SECONDS = 0.1
_NEVER_SECONDS = 3600.0


class DeadChildRecovery:
    """A service: settles what dead children held, again and again until the store answers."""

    name = "recover children"

    def __init__(self, store: Store, bus: EventBus, folder: Path) -> None:
        self._store = store
        self._bus = bus
        self._folder = folder
        self.pending: dict[str, tuple[str, bool]] = {}
        self.recovered_at = 0.0
        """When (monotonic) the runs of a child were last settled. Some may be ready again."""

    def add(self, worker_id: str, reason: str, *, stopped: bool) -> None:
        """Take on a child that is gone."""
        self.pending[worker_id] = (reason, stopped)

    def tick(self) -> float:
        """Settle what all of them held."""
        for worker_id, (reason, stopped) in list(self.pending.items()):
            recover_worker(
                self._store, self._bus, worker_id, self._folder, stopped=stopped, reason=reason
            )
            self.recovered_at = monotonic()
            del self.pending[worker_id]
        self._store.disconnect()
        return _NEVER_SECONDS

    def finish(self) -> None:
        """Try once more at the very end; others find what is left when its lease is over."""
        with contextlib.suppress(StoreError):
            self.tick()


class SuspectMonitor:
    """A service: notices runs that wait for a one-slot child.

    The children look anyway, and leave in their slots what they saw: the keeper itself asks the
    store only when one of them saw such a run, or none is there to look; and now and then in any
    case, since a body may keep its child from looking.
    """

    name = "watch suspects"

    def __init__(self, store: Store, may_wait: Callable[[], bool]) -> None:
        self._store = store
        self._may_wait = may_wait
        self._ticks = 0
        self.waiting = False

    def tick(self) -> float:
        """Look once, if there is a reason to."""
        self._ticks += 1
        looks = self._may_wait() or self._ticks % _LOOK_EVERY == 0
        self.waiting = looks and self._store.peek().suspect
        if looks and not self.waiting:
            self._store.disconnect()
        return SUSPECT_PAUSE


class StartAnnouncement:
    """A service: once a child is registered, tells which tasks and schedules this program runs.

    The supervisor imports no user code, so it reads what the child has registered.
    """

    name = "announce start"

    def __init__(
        self,
        store: Store,
        bus: EventBus,
        find_registered: Callable[[], str | None],
        app: str,
        settings: WorkerSettings,
        processes: int,
    ) -> None:
        self._store = store
        self._bus = bus
        self._find_registered = find_registered
        self._app = app
        self._settings = settings
        self._processes = processes
        self._is_announced = False

    def tick(self) -> float:
        """Announce the start, at most once."""
        if self._is_announced:
            return _NEVER_SECONDS
        worker_id = self._find_registered()
        if worker_id is None:
            return _REGISTRATION_LOOK_SECONDS
        worker = self._store.get_worker(worker_id)
        if worker is None:
            return _REGISTRATION_LOOK_SECONDS
        event = SupervisorReady(
            self._app,
            tuple(json.loads(worker.tasks)),
            self._settings.served_queues.shown(),
            tuple(self._store.list_next_schedules(PAGE)),
            self._store.now(),
            self._processes,
            self._settings.concurrency,
            self._settings.async_limit,
        )
        self._is_announced = True
        self._store.disconnect()
        self._bus.emit(event)
        return _NEVER_SECONDS

    def finish(self) -> None:
        """Announce a start that was too short to be noticed."""
        with contextlib.suppress(StoreError):
            self.tick()

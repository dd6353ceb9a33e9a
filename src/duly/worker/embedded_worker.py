"""A worker inside the program that uses it: `with app.worker(): …`.

A thread of its own beats, so a busy event loop loses no lease; a body that holds the interpreter
lock for longer than the lease is on its own. Where bodies must not share fate, use `duly worker`.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

from duly.clock import monotonic, new_id
from duly.errors import BadOption, StoreError, WorkerTimeout
from duly.events import EventBus, StoreFailed
from duly.heartbeat import HeartbeatThread
from duly.registry import Registry
from duly.settings import WorkerSettings
from duly.store.protocol import Store
from duly.store.store_factory import runtime_folder
from duly.worker.runners.loop_shutdown import LoopShutdownMonitor
from duly.worker.services.recovery import recover_worker
from duly.worker.start_marks import StartMarks, start_marks_path
from duly.worker.worker import Worker

_LOOK_SECONDS = 0.01
_SOON = 250_000
"""Microseconds: a firing that waits for the last run is looked at again within that time."""
_BODY_LOOK_SECONDS = 0.5
"""How often a worker that was disowned looks whether its last body has ended."""


class EmbeddedWorker:
    """A worker in this process, from `app.worker()`. `with` starts it, and stops it at the end."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        settings: WorkerSettings,
        bus: EventBus,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        before_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._before_start = before_start
        self._store = store
        self._registry = registry
        self._settings = settings
        self._bus = bus
        self._loop = loop
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        """Held by who ends the worker: its owner, or the end of its loop."""
        self._worker: Worker | None = None
        self._slots: StartMarks | None = None
        self._stopping = False
        self._keepalive = self._new_keepalive()

    def start(self) -> Self:
        """Start to claim and run tasks. Raise StoreError if the database cannot be used."""
        self._before_start()
        self._stopping = False
        self._keepalive = self._new_keepalive()
        self._bus.start_log(self)
        try:
            self._begin()
        except (StoreError, OSError):
            self._bus.stop_log(self)
            raise
        self._keepalive.start()
        return self

    def stop(self, *, grace: float | None = None) -> None:
        """Stop claiming, wait `grace` seconds for running tasks, and hand back the other runs.

        Without `grace`, the worker's own setting counts.
        """
        with self._lock:
            self._stopping = True
        ended = None
        with self._ending:
            # Twice, if one was just about to go on under a new identity.
            while (worker := self._worker) is not None and worker is not ended:
                self._end(worker, self._settings.grace if grace is None else grace)
                ended = worker
        self._bus.stop_log(self)

    def _end(self, worker: Worker, grace: float) -> None:
        worker.stop_claiming()
        if not worker.wait_until_empty(grace):
            worker.cancel_bodies("stopped")
            worker.wait_until_empty(1.0)
        worker.stop()
        if worker.inflight.is_empty() or worker.is_disowned:
            self._keepalive.stop()
            self._unregister(worker)
        # Otherwise a thread is still inside a body. Its claim is kept until it has ended: the
        # keepalive goes on, and parts with the worker then.

    def _unregister(self, worker: Worker) -> None:
        """Say good-bye for a worker that holds nothing any more."""
        with self._lock:
            slots = self._slots
            if self._worker is not worker or slots is None:
                return
            self._worker = None
        worker.end_life()
        # One whose engine hangs may have hung in the store. Its lease expires.
        if not (worker.is_disowned or worker.threads.has_stalled):
            recover_worker(
                self._store,
                self._bus,
                worker.worker_id,
                slots.path.parent,
                stopped=True,
                reason="stopped",
            )

    @property
    def is_live(self) -> bool:
        """True if it is running and its last heartbeat reached the database in time."""
        worker, slots = self._worker, self._slots
        if worker is None or slots is None or self._stopping or worker.is_disowned:
            return False
        return monotonic() < slots.deadline and not worker.threads.has_lost_one()

    @property
    def worker_id(self) -> str | None:
        """The id under which it works now. None if it is not running."""
        worker = self._worker
        return None if worker is None else worker.worker_id

    @property
    def leased_id(self) -> str | None:
        """That id, if its lease is certain. None while other workers may have declared it dead."""
        with self._lock:
            worker, slots = self._worker, self._slots
        if worker is None or slots is None or worker.is_disowned or monotonic() >= slots.deadline:
            return None
        return worker.worker_id

    def limit_queue(self, name: str, limit: int | None) -> None:
        """Change the limit of a queue that it serves. Running tasks continue."""
        queues = self._settings.queues
        if name not in dict(queues):
            raise BadOption(f"this worker does not list queue {name!r}, so it has no limit for it")
        changed = tuple((each, limit if each == name else old) for each, old in queues)
        with self._lock:
            self._settings = replace(self._settings, queues=changed)
            worker = self._worker
        if worker is not None:
            worker.limit_queues(changed)

    def carry(self, run_id: str, claim_number: int) -> bool:
        """Run a run that another engine delivered. Return False if it could not be claimed."""
        worker = self._worker
        return worker is not None and worker.carry(run_id, claim_number)

    def drain(self, timeout: float | None = None) -> None:
        """Work until no run is ready or running, then stop. Raise WorkerTimeout after `timeout`."""
        self.start()
        until = None if timeout is None else monotonic() + timeout
        try:
            while not self._is_drained():
                if until is not None and monotonic() >= until:
                    message = f"there were still unfinished runs after {timeout} s"
                    raise WorkerTimeout(message)
                threading.Event().wait(_LOOK_SECONDS)
        finally:
            self.stop()

    def _is_drained(self) -> bool:
        worker = self._worker
        return worker is not None and worker.has_drained(soon=_SOON)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _begin(self) -> None:
        worker_id = new_id()
        # A program that cleans up temporary folders may have removed it.
        folder = runtime_folder(self._store)
        slots = StartMarks(
            start_marks_path(folder, worker_id), create=self._settings.start_mark_count
        )
        worker = Worker(
            self._store,
            self._registry,
            self._settings,
            slots,
            self._bus,
            worker_id=worker_id,
            takes_suspects=True,
            beats_since=lambda: self._keepalive.beats_succeeded_since,
            lookout=self._new_loop_monitor(),
        )
        try:
            worker.start()
        except (StoreError, OSError):
            worker.end_life()
            slots.remove()
            raise
        with self._lock:
            self._worker, self._slots = worker, slots

    def _new_loop_monitor(self) -> LoopShutdownMonitor | None:
        return None if self._loop is None else LoopShutdownMonitor(self._loop, self._on_loop_end)

    def _new_keepalive(self) -> HeartbeatThread:
        return HeartbeatThread(
            self._store.heartbeats(),
            self._members,
            self._disowned,
            lease=self._settings.lease,
            beat=self._settings.beat,
            margin=self._settings.margin,
        )

    def _members(self) -> Mapping[str, Callable[[float], None]]:
        with self._lock:
            worker, slots, stopping = self._worker, self._slots, self._stopping
        if worker is not None and stopping and self._is_spent(worker):
            # The body that outlived the grace has ended at last.
            if not worker.inflight.is_empty():
                worker.disown()  # Nobody here can record its end: its lease must expire.
            worker.stop()
            self._keepalive.stop()
            with contextlib.suppress(StoreError):  # Others find out when its lease is over.
                self._unregister(worker)
            return {}
        if worker is not None and not stopping and worker.threads.look(every=self._settings.beat):
            self._stop_on_own_thread(self._settings.grace)
        if worker is not None and worker.write_monitor.gave_up and not worker.is_disowned:
            _disown(worker)
        if worker is not None and worker.is_disowned and not stopping:
            worker, slots = self._new_identity()
        if worker is None or slots is None or worker.is_disowned:
            return {}

        def publish(deadline: float) -> None:
            slots.deadline = deadline

        return {worker.worker_id: publish}

    def _is_spent(self, worker: Worker) -> bool:
        """Return whether a worker that was stopped has nothing to record, or cannot record it."""
        if not worker.has_stopped or worker.inflight.is_empty() or self._slots is None:
            return worker.has_stopped
        return worker.threads.has_stalled and all(mark.ended for mark in self._slots.marks())

    def _disowned(self, worker_id: str) -> None:
        """Another worker took over our runs: go on under a new identity, at the next tick."""
        worker = self._worker
        if worker is None or worker.worker_id != worker_id:
            return
        _disown(worker)
        self._keepalive.beat_now()

    def _on_loop_end(self) -> None:
        """End what has outlived its loop: it could begin nothing more there."""
        self._stop_on_own_thread(0.0)

    def _stop_on_own_thread(self, grace: float) -> None:
        """Stop on a thread of its own: the calling one is among those that must end."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        threading.Thread(
            target=self.stop, kwargs={"grace": grace}, name="duly-stop", daemon=True
        ).start()

    def _new_identity(self) -> tuple[Worker | None, StartMarks | None]:
        gone = self._worker
        try:
            self._begin()
        except (StoreError, OSError) as error:
            self._bus.emit(StoreFailed("keepalive", str(error), self._settings.beat))
            return None, None  # The next tick tries again.
        if gone is not None:
            # As the store sees it, it holds nothing any more.
            gone.end_life()
            self._store.heartbeats().forget(gone.worker_id)
        return self._worker, self._slots


def _disown(worker: Worker) -> None:
    """End a worker whose runs belong to others; a body that goes on keeps its thread.

    The keepalive cannot wait for bodies, so another thread ends the rest after the last of them.
    """
    worker.disown()
    # Its last body may end while it stops, after the look that would have ended the settler.
    has_bodies = not worker.inflight.is_empty()
    worker.stop()
    if has_bodies:
        threading.Thread(
            target=_stop_after_last_body, args=(worker,), name="duly-stop", daemon=True
        ).start()


def _stop_after_last_body(worker: Worker) -> None:
    while True:
        # The worker never starts the runs that it has claimed and not started: others have them.
        worker.inflight.release(worker.inflight.withdraw(lambda _held: True))
        if worker.inflight.is_empty():
            break
        threading.Event().wait(_BODY_LOOK_SECONDS)
    worker.stop()

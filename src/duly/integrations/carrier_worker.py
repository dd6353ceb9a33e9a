"""The part of a carrier that runs in the processes of another engine's workers."""

import threading
from contextlib import suppress
from typing import Any

from duly.app import Duly
from duly.errors import BadOption, StoreError
from duly.events import UnknownTaskDelivered
from duly.store.per_process import PerProcess
from duly.worker.embedded_worker import EmbeddedWorker

_START_PAUSE_SECONDS = 2.0


class CarrierWorker:
    """One worker of ours per process, which runs what it is brought and claims nothing else.

    It has a lease like every other: what a killed process ran is found lost, queued again and
    handed over again.
    """

    def __init__(self, **settings: float) -> None:
        self._settings: dict[str, Any] = {"carries": True, **settings}
        self._concurrency = 1
        self._app: Duly | None = None
        self._running: PerProcess[_WorkerHandle] = PerProcess(self._begin)
        self._is_over = threading.Event()

    @property
    def app(self) -> Duly:
        """The application whose runs these are."""
        if self._app is None:
            raise BadOption(
                "this carrier has no tasks yet; pass it to a task with @app.task(carrier=…)"
            )
        return self._app

    def attach(self, app: Duly) -> bool:
        """Get to know the application; say whether that is news."""
        if self._app is app:
            return False
        if self._app is not None:
            raise BadOption("a carrier serves the tasks of one application; create another carrier")
        self._app = app
        return True

    def start(self, concurrency: int) -> None:
        """Begin to show that this process lives, and to hand runs over; later if need be.

        Nobody would call a second time: messages come only from who hands over. `concurrency` is
        how many of them the engine brings to this process at once: with less room here, a run
        would be claimed only to wait.
        """
        self._concurrency = concurrency
        try:
            self._running.get()
        except StoreError:
            threading.Thread(
                target=self._start_later, name="duly-carrier-start", daemon=True
            ).start()

    def run(self, run_id: str, claim_number: int, task: str) -> bool:
        """Run one attempt to its end; say whether there was one to run."""
        if self.app.registry.find(task) is None:
            # Another process may know it: it is handed over again.
            self.app.bus.emit(UnknownTaskDelivered(run_id, task))
            return False
        return self._running.get().worker.carry(run_id, claim_number)

    def stop(self) -> None:
        """Let the bodies under way end, and say good-bye."""
        self._is_over.set()
        self._running.close()

    def _start_later(self) -> None:
        while not self._is_over.wait(_START_PAUSE_SECONDS):
            with suppress(StoreError):
                self._running.get()
                return

    def _begin(self) -> "_WorkerHandle":
        worker = self.app.worker(concurrency=self._concurrency, **self._settings)
        return _WorkerHandle(worker.start())


class _WorkerHandle:
    """An embedded worker, as something that can be closed."""

    def __init__(self, worker: EmbeddedWorker) -> None:
        self.worker = worker

    def close(self) -> None:
        """Stop it."""
        self.worker.stop()

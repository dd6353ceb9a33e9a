"""The part of a carrier that runs in the worker processes of another engine."""

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
    """One duly worker per process. It runs the carried runs it receives and claims no others.

    It has a lease like any other worker. If its process is killed, its runs are found lost, queued
    again and sent to the carrier again.
    """

    def __init__(self, **settings: float) -> None:
        self._settings: dict[str, Any] = {"carries": True, **settings}
        self._concurrency = 1
        self._app: Duly | None = None
        self._running: PerProcess[_WorkerHandle] = PerProcess(self._begin)
        self._is_over = threading.Event()

    @property
    def app(self) -> Duly:
        """The application that owns the carried runs."""
        if self._app is None:
            raise BadOption(
                "this carrier has no tasks yet; pass it to a task with @app.task(carrier=…)"
            )
        return self._app

    def attach(self, app: Duly) -> bool:
        """Remember the application. Return whether it was not attached before."""
        if self._app is app:
            return False
        if self._app is not None:
            raise BadOption("a carrier serves the tasks of one application; create another carrier")
        self._app = app
        return True

    def start(self, concurrency: int) -> None:
        """Start the worker, so that it renews its lease and sends queued runs through the carrier.

        If the store cannot be reached, a thread keeps trying. Workers like this one send the
        messages, so no message might ever arrive that would start this worker later.
        `concurrency` is how many messages the engine delivers to this process at once. With a lower
        concurrency here, a run would be claimed and then wait.
        """
        self._concurrency = concurrency
        try:
            self._running.get()
        except StoreError:
            threading.Thread(
                target=self._start_later, name="duly-carrier-start", daemon=True
            ).start()

    def run(self, run_id: str, claim_number: int, task: str) -> bool:
        """Run one attempt until it ends. Return False if there was no attempt to run."""
        if self.app.registry.find(task) is None:
            # Another process may know the task. The run is sent to the carrier again.
            self.app.bus.emit(UnknownTaskDelivered(run_id, task))
            return False
        return self._running.get().worker.carry(run_id, claim_number)

    def stop(self) -> None:
        """Let the running attempts finish, then stop the worker."""
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
    """An embedded worker with a `close` method."""

    def __init__(self, worker: EmbeddedWorker) -> None:
        self.worker = worker

    def close(self) -> None:
        """Stop the worker."""
        self.worker.stop()

"""An application in real server processes: started, requested, killed, restarted and stopped."""

import contextlib
import http.client
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any, Self

from duly import Duly
from tests.integrations.fleet import ROOT, FleetWorker
from tests.servers.processes import free_port, is_running, wait_until

STARTED = "Application startup complete"
IMPORTS = (
    "fastapi",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.lifespan.on",
    "duly.integrations.fastapi",
    "duly.worker.embedded_worker",
    "duly.store.sqlite.store",
)
_LONGEST_SECONDS = 120.0


class Server(FleetWorker):
    """A supervisor and its processes, each with a duly worker: `with Server(…) as server:`."""

    def __init__(
        self, command: list[str], log: Path, duly: Duly, *, workers: int = 1, **variables: str
    ) -> None:
        """Name a command without its port.

        Its workers use the store of `duly`.
        """
        self.port = free_port()
        self._duly = duly
        self._workers = workers
        path = f"{ROOT}{os.pathsep}{ROOT / 'src'}{os.pathsep}{log.parent}"
        environment = {"DULY_URL": duly.url, "PYTHONPATH": path} | variables
        bound = [part.replace("PORT", str(self.port)) for part in command]
        super().__init__(bound, log, environment, ready=STARTED, imports=IMPORTS)

    def wait_until_all_serve(self, *, but: frozenset[int] = frozenset()) -> None:
        """Wait until every process has a worker that is not among the named ones."""

        def is_so() -> bool:
            pids = self.serving()
            return len(pids) == self._workers and not pids & but

        wait_until(is_so, seconds=_LONGEST_SECONDS, what=f"all processes serve: {self.log}")

    def serving(self) -> frozenset[int]:
        """Return the processes whose workers are live according to the store."""
        live = [worker.pid for worker in self._duly.workers.list() if worker.state == "live"]
        return frozenset(pid for pid in live if self._is_ours(pid))

    def supervisor(self) -> int:
        """Return the parent process of the others."""
        return self._process.pid

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the supervisor to stop, and wait until all processes have ended."""
        os.kill(self.supervisor(), number)
        self.wait_until_gone()

    def wait_until_gone(self) -> None:
        """Wait until the last process has ended by itself."""
        self._process.wait(_LONGEST_SECONDS)
        wait_until(
            lambda: not any(is_running(pid) for pid in self.members()),
            seconds=_LONGEST_SECONDS,
            what=f"the server has stopped: {self.log}",
        )

    def post(self, path: str, body: object = None) -> Any:
        """Send a request. Return its answer, or None if there was no answer or a failure."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_LONGEST_SECONDS)
        with (
            contextlib.closing(connection),
            contextlib.suppress(OSError, http.client.HTTPException),
        ):
            headers = {"Content-Type": "application/json", "Connection": "close"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status < http.client.MULTIPLE_CHOICES:
                return json.loads(said)
        return None

    def _is_ours(self, pid: int) -> bool:
        # Searching all processes each time would take most of a test's time.
        with contextlib.suppress(ProcessLookupError):
            return os.getsid(pid) == self._process.pid
        return False


class Customers:
    """Threads that send one order after another until they are stopped."""

    def __init__(self, server: Server, *, count: int, pause: float) -> None:
        self._server = server
        self._pause = pause
        self._is_over = threading.Event()
        self.answers: list[dict[str, Any]] = []
        self.unanswered = 0
        self._threads = [threading.Thread(target=self._order) for _ in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Send no more orders. Return after the last answer."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _order(self) -> None:
        while not self._is_over.wait(self._pause):
            answer = self._server.post("/orders", {"item": "tea", "cents": 450})
            if answer is None:
                self.unanswered += 1
            else:
                self.answers.append(answer)

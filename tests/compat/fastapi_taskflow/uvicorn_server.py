"""Applications under uvicorn, each in a process of its own."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.servers.processes import free_port, wait_until
from tests.servers.warm import Program, warm

ROOT = Path(__file__).parents[3]
SOON = 30.0
IMPORTS = (
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.h11_impl",
    "duly.compat.fastapi_taskflow",
    "duly.worker.embedded_worker",
    "duly.store.postgres.store",
    "duly.store.sqlite.store",
)


@contextmanager
def uvicorn(application: str, folder: Path, **variables: str) -> Iterator[tuple[Program, int]]:
    """Serve an application from that folder until it answers; yield the process and its port."""
    port = free_port()
    path = f"{ROOT}{os.pathsep}{ROOT / 'src'}"
    server = warm(*IMPORTS).start(
        ["-m", "uvicorn", application, "--log-level", "critical", "--port", str(port)],
        log=folder / "uvicorn.log",
        folder=folder,
        environment=os.environ | variables | {"PYTHONPATH": path},
    )
    try:
        wait_until(lambda: _is_answered(port), seconds=SOON, what="the application answers")
        yield server, port
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _is_answered(port: int) -> bool:
    with suppress(OSError):
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/tasks/metrics").status == 200
    return False


def ask(port: int, path: str, method: str = "GET") -> Any:
    """Return the JSON that a path answers with."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
        return json.load(answer)

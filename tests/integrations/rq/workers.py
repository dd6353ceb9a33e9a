"""Real RQ workers."""

import os
from pathlib import Path

from tests.integrations.fleet import FleetWorker

QUEUE = "shop"
APP = "tests.integrations.rq.carried:app"
IMPORTS = ("rq.cli", "duly.integrations.rq", "duly.store.sqlite.store")


def rq_worker(
    folder: Path, redis_url: str, environment: dict[str, str], *options: str
) -> FleetWorker:
    """Return a worker as a context manager. Without options it has a scheduler."""
    name = f"rq-{os.urandom(4).hex()}"
    command = [
        *("rq.cli", "worker", "--url", redis_url, "--name", name),
        *("--job-monitoring-interval", "1", *(options or ("--with-scheduler",)), QUEUE),
    ]
    return FleetWorker(
        command, folder / f"{name}.log", environment, ready="Listening on", imports=IMPORTS
    )

"""Real RQ workers."""

import os
import sys
from pathlib import Path

from tests.integrations.fleet import FleetWorker

QUEUE = "shop"


def rq_worker(
    folder: Path, redis_url: str, environment: dict[str, str], *options: str
) -> FleetWorker:
    """Return a worker, to be entered; without options it has a scheduler."""
    name = f"rq-{os.urandom(4).hex()}"
    command = [
        *(sys.executable, "-m", "rq.cli", "worker", "--url", redis_url, "--name", name),
        *("--job-monitoring-interval", "1", *(options or ("--with-scheduler",)), QUEUE),
    ]
    return FleetWorker(command, folder / f"{name}.log", environment, ready="Listening on")

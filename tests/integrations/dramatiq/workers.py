"""Real Dramatiq workers."""

import os
from pathlib import Path

from tests.integrations.fleet import FleetWorker

IMPORTS = (
    "dramatiq.cli",
    "dramatiq.brokers.redis",
    "dramatiq.results.backends.redis",
    "duly.integrations.dramatiq",
    "duly.store.sqlite.store",
)


def dramatiq_worker(folder: Path, environment: dict[str, str], *options: str) -> FleetWorker:
    """Return a worker as a context manager: one process with two threads."""
    command = [
        *("dramatiq", "tests.integrations.dramatiq.shop"),
        *(options or ("--processes", "1", "--threads", "2")),
    ]
    log = folder / f"dramatiq-{os.urandom(4).hex()}.log"
    return FleetWorker(command, log, environment, ready="ready for action", imports=IMPORTS)

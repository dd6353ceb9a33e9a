"""Real Celery workers that are started, killed, and always removed at the end."""

import os
from pathlib import Path

from tests.integrations.fleet import ROOT, FleetWorker

IMPORTS = (
    "celery.bin.celery",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.concurrency.prefork",
    "cffi.cparser",
    "kombu.transport.redis",
    "duly.integrations.celery",
    "duly.store.sqlite.store",
)


class CeleryWorker(FleetWorker):
    """A worker with its pool. `with CeleryWorker(…) as worker:` leaves no process running."""

    def __init__(
        self,
        logs: Path,
        environment: dict[str, str],
        *options: str,
        application: str = "tests.integrations.celery.shop",
        folder: Path = ROOT,
    ) -> None:
        command = [
            *("celery", "-A", application, "worker"),
            *("--loglevel", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat"),
            *(options or ("--concurrency", "2")),
        ]
        log = logs / f"celery-{os.urandom(4).hex()}.log"
        super().__init__(command, log, environment, ready=" ready.", imports=IMPORTS, folder=folder)

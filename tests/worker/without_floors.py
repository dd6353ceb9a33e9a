"""The shop in a worker process that needs no floors: a look for them borrows a connection."""

from duly.store.postgres import floors
from tests.worker.shop import app

floors.SLOW_SECONDS = 3600.0

__all__ = ["app"]

"""The shop in a worker process that reads on one connection, however many of its threads read."""

from duly.store.postgres import store
from tests.worker.shop import app

store.READERS = 1

__all__ = ["app"]

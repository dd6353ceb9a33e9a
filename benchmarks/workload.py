"""The preparation of several figures: fills a store and registers a worker."""

import json
from contextlib import closing

from benchmarks.tasks import app, noop
from duly.clock import new_id
from duly.settings import WorkerSettings
from duly.store.ops.runs import Enqueue
from duly.store.ops.upkeep import RegisterWorker
from duly.store.store_factory import open_store

QUEUE, LANE = "default", "loop"


def enqueue_noops(url: str, count: int) -> None:
    """Fill the store with runs of the task that does nothing."""
    app.use_url(url)
    app.enqueue_many(noop.call(number) for number in range(count))
    app.close()


def noop_ops(count: int) -> list[Enqueue]:
    """Return the ops that enqueue runs of the task that does nothing."""
    return [noop.call(number).op for number in range(count)]


def register_worker(url: str) -> str:
    """Register a worker for claims and settles without a worker process."""
    worker_id = new_id()
    with closing(open_store(url)) as store:
        lease = WorkerSettings().lease
        store.do(RegisterWorker(worker_id, "here", 0, lease, "[]", json.dumps([noop.name])))
    return worker_id

"""The shop as its customers see it, and its workers."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import rq
from rq.job import Job, JobStatus

from tests.integrations.counter import EffectCounter
from tests.integrations.engine_shop import EngineShop, shops
from tests.integrations.fleet import FleetWorker
from tests.integrations.rq.workers import APP, QUEUE, rq_worker
from tests.servers.processes import wait_until

WAIT = 40


class Shop(EngineShop):
    """The queue, with methods that enqueue jobs and wait for their results."""

    def __init__(
        self, module: Any, folder: Path, redis_url: str, environment: dict[str, str]
    ) -> None:
        super().__init__(module.guard, Path(environment["SHOP_GATE"]))
        self.tasks = module
        self.folder = folder
        self._redis_url = redis_url
        self._environment = environment
        client = self._open.enter_context(redis.Redis.from_url(redis_url))
        self.queue = rq.Queue(QUEUE, connection=client)

    def send(self, function: Callable[..., Any], *args: Any, retries: int = 0) -> Job:
        """Enqueue a job."""
        retry = rq.Retry(max=retries) if retries else None
        return self.queue.enqueue(function, args=args, retry=retry)

    def wait_until_status(self, job: Job, *statuses: JobStatus) -> None:
        """Wait until a job has one of these statuses."""
        wait_until(
            lambda: job.get_status() in statuses, seconds=WAIT, what=f"{job.func_name} {statuses}"
        )

    def result(self, job: Job) -> Any:
        """Wait until a job succeeds, and return its result."""
        self.wait_until_status(job, JobStatus.FINISHED, JobStatus.FAILED)
        assert job.get_status() == JobStatus.FINISHED, job.latest_result().exc_string
        return job.return_value()

    def _new_worker(self, *options: str) -> FleetWorker:
        return rq_worker(self.folder, self._redis_url, self._environment, *options)


@pytest.fixture
def open_shop(
    tmp_path: Path, redis_url: str, counter: EffectCounter, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Shop]]:
    """Open a shop whose guard is at the given address."""

    def make(guard_url: str) -> Shop:
        environment = {
            "SHOP_GUARD": guard_url,
            "SHOP_COUNTER": str(counter.port),
            "SHOP_GATE": str(tmp_path / "gate"),
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        module = importlib.import_module("tests.integrations.rq.shop")
        return Shop(importlib.reload(module), tmp_path, redis_url, environment)

    with shops(make) as open_one:
        yield open_one


@pytest.fixture
def tasks(store_url, redis_url, monkeypatch):
    """Yield the application in this process."""
    monkeypatch.setenv("SHOP_STORE", store_url)
    monkeypatch.setenv("SHOP_BROKER", redis_url)
    module = importlib.reload(importlib.import_module("tests.integrations.rq.carried"))
    module.app.runs.list()
    yield module
    module.app.close()
    module.broker.close()


@pytest.fixture
def queue(tasks):
    """Return the queue that receives the messages."""
    return rq.Queue(QUEUE, connection=tasks.broker)


@pytest.fixture
def handing_over(tasks):
    """Run one of duly's workers, which hands runs over and detects lost workers."""
    with tasks.app.worker(lease=2.0, beat=0.5):
        yield


@pytest.fixture
def start_worker(tmp_path, tasks, redis_url):
    """Return a function that starts an RQ worker, which ends with the test."""
    with ExitStack() as stack:

        def start(*options: str, app: str | None = APP) -> FleetWorker:
            told = {} if app is None else {"DULY_APP": app}
            return stack.enter_context(rq_worker(tmp_path, redis_url, told, "--verbose", *options))

        yield start

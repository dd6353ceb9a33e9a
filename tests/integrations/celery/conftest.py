"""The shop as its customers see it, and its workers."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.celery.workers import CeleryWorker
from tests.servers.processes import wait_until


class Shop:
    """The application in this process, with methods that start workers and read their notes."""

    def __init__(self, module: Any, notes: Path, environment: dict[str, str]) -> None:
        self.tasks = module
        self.guard = module.guard_of(module.app)
        self._notes = notes
        self._environment = environment
        self._open = ExitStack()
        self._workers: list[CeleryWorker] = []

    def worker(self, *options: str) -> CeleryWorker:
        """Start a worker. It ends with the test."""
        worker = self._open.enter_context(
            CeleryWorker(self._notes.parent, self._environment, *options)
        )
        self._workers.append(worker)
        return worker

    def logs(self) -> str:
        """Return the lines that the workers have logged."""
        return "".join(worker.log.read_text() for worker in self._workers)

    def notes(self, what: str) -> list[tuple[str, int]]:
        """Return the notes: the subject, and the process that wrote it."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        words = [line.split() for line in lines]
        return [(subject, int(pid)) for found, subject, pid in words if found == what]

    def count(self, what: str) -> int:
        """Return how often a note was written."""
        return len(self.notes(what))

    def wait_for(self, what: str, count: int = 1) -> None:
        """Wait until a note was written this many times."""
        wait_until(lambda: self.count(what) >= count, seconds=40, what=f"{count} times {what}")

    def open_gate(self) -> None:
        """Let the tasks that wait at the gate finish."""
        Path(f"{self._notes}.gate").touch()

    def mend(self) -> None:
        """Repair the condition that makes tasks fail."""
        Path(f"{self._notes}.mended").touch()

    def close(self) -> None:
        """End the workers and close the connections."""
        self._open.close()
        self.guard.close()
        self.tasks.app.close()


@pytest.fixture
def open_shop(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Shop]]:
    """Open a shop whose guard is at the given address."""
    with ExitStack() as stack:

        def open_one(guard_url: str) -> Shop:
            environment = {
                "SHOP_BROKER": redis_url,
                "SHOP_GUARD": guard_url,
                "SHOP_NOTES": str(tmp_path / "notes"),
            }
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            # Imported once: Celery adds tasks to every application of a process, including old
            # ones.
            module = importlib.import_module("tests.integrations.celery.shop")
            module.open_at(redis_url, guard_url)
            shop = Shop(module, tmp_path / "notes", environment)
            stack.callback(shop.close)
            # The first process to open a store sets it up. The test's processes need not race for
            # that.
            shop.guard.look("none")
            return shop

        yield open_one


@pytest.fixture
def shop(open_shop: Callable[[str], Shop], store_url: str) -> Shop:
    """Return a shop whose guard is on the store of this test."""
    return open_shop(store_url)


@pytest.fixture
def tasks(store_url, redis_url, monkeypatch):
    """Yield the application whose runs are carried, in this process."""
    monkeypatch.setenv("SHOP_STORE", store_url)
    monkeypatch.setenv("SHOP_BROKER", redis_url)
    module = importlib.import_module("tests.integrations.celery.carried")
    module.app.use_url(store_url)
    module.fleet.conf.broker_url = redis_url
    module.app.runs.list()
    yield module
    module.carrier._carrying.stop()
    module.app.close()


@pytest.fixture
def start_worker(tmp_path, tasks):
    """Return a function that starts a Celery worker, which ends with the test."""
    with ExitStack() as stack:

        def start(*options: str) -> CeleryWorker:
            chosen = options or ("--concurrency", "2")
            worker = CeleryWorker(
                tmp_path,
                {},
                "-Q",
                "fleet",
                *chosen,
                application="tests.integrations.celery.carried:fleet",
            )
            return stack.enter_context(worker)

        yield start

"""The shop as its customers see it, and its workers."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.celery.workers import CeleryWorker
from tests.integrations.engine_shop import EngineShop, shops
from tests.servers.processes import wait_until


class Shop(EngineShop):
    """The application in this process, with methods that read the notes of its workers."""

    def __init__(self, module: Any, notes: Path, environment: dict[str, str]) -> None:
        super().__init__(module.guard_of(module.app), Path(f"{notes}.gate"))
        self.tasks = module
        self._notes = notes
        self._environment = environment
        self._workers: list[CeleryWorker] = []

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

    def mend(self) -> None:
        """Repair the condition that makes tasks fail."""
        Path(f"{self._notes}.mended").touch()

    def close(self) -> None:
        """End the workers and close the connections."""
        super().close()
        self.tasks.app.close()

    def _new_worker(self, *options: str) -> CeleryWorker:
        worker = CeleryWorker(self._notes.parent, self._environment, *options)
        self._workers.append(worker)
        return worker


@pytest.fixture
def open_shop(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Shop]]:
    """Open a shop whose guard is at the given address."""

    def make(guard_url: str) -> Shop:
        environment = {
            "SHOP_BROKER": redis_url,
            "SHOP_GUARD": guard_url,
            "SHOP_NOTES": str(tmp_path / "notes"),
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        # Imported once: Celery adds tasks to every application of a process, including old ones.
        module = importlib.import_module("tests.integrations.celery.shop")
        module.open_at(redis_url, guard_url)
        return Shop(module, tmp_path / "notes", environment)

    with shops(make) as open_one:
        yield open_one


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

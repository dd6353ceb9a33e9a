"""The shop as its customers see it, and its workers."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.counter import EffectCounter
from tests.integrations.dramatiq.workers import dramatiq_worker
from tests.integrations.engine_shop import EngineShop, shops
from tests.integrations.fleet import FleetWorker

WAIT_MILLISECONDS = 40_000


class Shop(EngineShop):
    """The actors, with a method that waits for their results."""

    def __init__(self, module: Any, folder: Path, environment: dict[str, str]) -> None:
        super().__init__(module.guard, Path(environment["SHOP_GATE"]))
        self.actors = module
        self._folder = folder
        self._environment = environment

    def result(self, message: Any) -> Any:
        """Wait for a message's result and return it."""
        return message.get_result(
            backend=self.actors.results, block=True, timeout=WAIT_MILLISECONDS
        )

    def close(self) -> None:
        """End the workers and close the connections."""
        super().close()
        self.actors.broker.close()
        self.actors.broker.client.close()

    def _new_worker(self, *options: str) -> FleetWorker:
        return dramatiq_worker(self._folder, self._environment, *options)


@pytest.fixture
def open_shop(
    tmp_path: Path, redis_url: str, counter: EffectCounter, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Shop]]:
    """Open a shop whose guard is at the given address."""

    def make(guard_url: str) -> Shop:
        environment = {
            "SHOP_BROKER": redis_url,
            "SHOP_GUARD": guard_url,
            "SHOP_COUNTER": str(counter.port),
            "SHOP_GATE": str(tmp_path / "gate"),
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        module = importlib.import_module("tests.integrations.dramatiq.shop")
        return Shop(importlib.reload(module), tmp_path, environment)

    with shops(make) as open_one:
        yield open_one

"""The shop as its customers see it, and its workers."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.counter import EffectCounter
from tests.integrations.dramatiq.workers import dramatiq_worker
from tests.integrations.fleet import FleetWorker

WAIT_MILLISECONDS = 40_000


class Shop:
    """The actors, with methods that start workers and show their effects."""

    def __init__(self, module: Any, folder: Path, environment: dict[str, str]) -> None:
        self.actors = module
        self.guard = module.guard
        self._folder = folder
        self._environment = environment
        self._open = ExitStack()

    def worker(self, *options: str) -> FleetWorker:
        """Start a worker. It ends with the test."""
        return self._open.enter_context(dramatiq_worker(self._folder, self._environment, *options))

    def result(self, message: Any) -> Any:
        """Wait for a message's result and return it."""
        return message.get_result(
            backend=self.actors.results, block=True, timeout=WAIT_MILLISECONDS
        )

    def open_gate(self) -> None:
        """Let the actors that wait at the gate finish."""
        Path(self._environment["SHOP_GATE"]).touch()

    def close(self) -> None:
        """End the workers and close the connections."""
        self._open.close()
        self.guard.close()
        self.actors.broker.close()
        self.actors.broker.client.close()


@pytest.fixture
def open_shop(
    tmp_path: Path, redis_url: str, counter: EffectCounter, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Shop]]:
    """Open a shop whose guard is at the given address."""
    with ExitStack() as stack:

        def open_one(guard_url: str) -> Shop:
            environment = {
                "SHOP_BROKER": redis_url,
                "SHOP_GUARD": guard_url,
                "SHOP_COUNTER": str(counter.port),
                "SHOP_GATE": str(tmp_path / "gate"),
            }
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            module = importlib.import_module("tests.integrations.dramatiq.shop")
            shop = Shop(importlib.reload(module), tmp_path, environment)
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

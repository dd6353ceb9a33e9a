"""The shop of another engine: its application in this process, and real workers of it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from duly.guard import Guard
from tests.integrations.fleet import FleetWorker


class EngineShop:
    """An application whose tasks a guard protects. A subclass makes the workers of its engine."""

    def __init__(self, guard: Guard, gate: Path) -> None:
        self.guard = guard
        self._gate = gate
        self._open = ExitStack()

    def worker(self, *options: str) -> FleetWorker:
        """Start a worker. It ends with the test."""
        return self._open.enter_context(self._new_worker(*options))

    def open_gate(self) -> None:
        """Let the tasks that wait at the gate finish."""
        self._gate.touch()

    def close(self) -> None:
        """End the workers and close the connections."""
        self._open.close()
        self.guard.close()

    def _new_worker(self, *options: str) -> FleetWorker:
        raise NotImplementedError


AShop = TypeVar("AShop", bound=EngineShop)


@contextmanager
def shops(make: Callable[[str], AShop]) -> Iterator[Callable[[str], AShop]]:
    """Yield a function that opens a shop whose guard is at an address, and close all shops."""
    with ExitStack() as stack:

        def open_one(guard_url: str) -> AShop:
            shop = make(guard_url)
            stack.callback(shop.close)
            # The first process to open a store sets it up. The test's processes need not race for
            # that.
            shop.guard.look("none")
            return shop

        yield open_one

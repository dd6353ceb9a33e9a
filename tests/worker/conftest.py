"""Applications with a worker on a fresh store of each kind; time that tests let pass."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from duly import Duly
from tests.store.conformance.stores import Tables, opened_tables
from tests.worker import shop as shop_module
from tests.worker.trees import Notes


class FakeTime:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeTime]:
    """Replaces the monotonic clock of the named modules; all share one."""
    time = FakeTime()

    def replace(*modules: object) -> FakeTime:
        for module in modules:
            monkeypatch.setattr(module, "monotonic", time)
        return time

    return replace


@pytest.fixture
def app(store_url: str) -> Iterator[Duly]:
    """An application on a fresh store of each kind."""
    app = Duly(store_url)
    yield app
    app.close()


@pytest.fixture
def shop(store_url: str) -> Iterator[ModuleType]:
    """The application that subprocesses and children import, on the same store."""
    shop_module.app.use_url(store_url)
    assert shop_module.app.runs.list() == []
    yield shop_module
    shop_module.app.close()


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """What the bodies note."""
    return Notes(tmp_path)


@pytest.fixture
def tables(app: Duly, store_url: str) -> Iterator[Tables]:
    """The database below the store, with a table of the application's."""
    assert app.runs.list() == []
    with opened_tables(store_url) as tables:
        tables.execute("CREATE TABLE ledger (run text NOT NULL, fence integer NOT NULL)")
        tables.execute("CREATE TABLE once (number integer PRIMARY KEY)")
        yield tables

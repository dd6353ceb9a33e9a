"""The store that every test of this folder runs on, once per kind, and what belongs to it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import pytest

from duly.store.opening import open_store
from tests.store.conformance.opening import (
    FakeClock,
    ServerClock,
    Tables,
    TestClock,
    is_sqlite,
    opened_tables,
)
from tests.store.conformance.verbs import register


class Opened(NamedTuple):
    """A store with everything around it."""

    store: Any
    clock: TestClock
    tables: Tables
    open_another: Callable[[], Any]
    """Open the same store once more, as another process would."""


@pytest.fixture
def opened(store_url: str) -> Iterator[Opened]:
    """A fresh store with its clock."""
    with ExitStack() as stack:
        host_clock = FakeClock() if is_sqlite(store_url) else None

        def open_another() -> Any:
            return stack.enter_context(closing(open_store(store_url, clock=host_clock)))

        store = open_another()
        clock = host_clock or stack.enter_context(closing(ServerClock(store_url)))
        tables = stack.enter_context(opened_tables(store_url))
        yield Opened(store, clock, tables, open_another)


@pytest.fixture
def store(opened: Opened) -> Any:
    """A fresh store of each kind."""
    return opened.store


@pytest.fixture
def clock(opened: Opened) -> TestClock:
    """The wall time of that store."""
    return opened.clock


@pytest.fixture
def tables(opened: Opened) -> Tables:
    """The tables of that store."""
    return opened.tables


@pytest.fixture
def open_another(opened: Opened) -> Callable[[], Any]:
    """Opens that store once more."""
    return opened.open_another


@pytest.fixture
def worker(store: Any) -> str:
    """A live worker that knows all tasks of the tests."""
    return register(store)

"""The cases of each verb: the preparation, the call that is counted, and the expected answer."""

import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from duly.store.store_factory import open_store, sqlite_path
from tests.servers.processes import wait_until
from tests.store.conformance.stores import (
    SCHEMA_TABLE,
    FakeClock,
    ServerClock,
    Tables,
    TestClock,
    is_sqlite,
    opened_tables,
)
from tests.store.conformance.verbs import HOUR_SECONDS, TIMEOUT
from tests.store.costs.counters import Cost, Counter, counting

TIMES = 3
"""The number of times that a call is made.

The first call is a warm-up: it prepares statements, and its connection fills its caches. Of the
others, the cheaper one counts, because a lone enqueue has two statements to prepare. It carries its
hint only if no hint was sent a moment ago.
"""


class World(NamedTuple):
    """A small store with its clock, its tables and its counter."""

    store: Any
    clock: TestClock
    tables: Tables
    counter: Counter
    first_rows: dict[str, list[tuple[Any, ...]]]
    """The rows that a new store has, by table."""
    folder: Path
    """The folder for files that a case writes."""

    @property
    def is_sqlite(self) -> bool:
        """Return whether the store is a file."""
        return is_sqlite(self.counter.url)

    def apply(self, *ops: Any) -> Any:
        """Write ops to prepare a case; return the answer of the last one."""
        return self.store.apply(list(ops))[-1]

    def wipe(self) -> None:
        """Empty the store, so that it equals a new one."""
        self.tables.wipe()
        for table, rows in self.first_rows.items():
            for row in rows:
                places = ", ".join(["?" if self.is_sqlite else "%s"] * len(row))
                # The names and numbers are ours.
                insert = f"INSERT INTO {table} VALUES ({places})"  # noqa: S608
                self.tables._connection.execute(insert, row)

    @contextmanager
    def open_transaction(self) -> Iterator[Any]:
        """Yield a connection of the caller with an open transaction."""
        url = self.counter.url
        if self.is_sqlite:
            with closing(sqlite3.connect(sqlite_path(url), isolation_level=None)) as connection:
                connection.execute("BEGIN")
                yield connection
                connection.execute("COMMIT")
        else:
            with psycopg.connect(url) as connection:
                connection.execute("SELECT")
                yield connection


Call = Any
"""An op, a list of ops for one `apply`, or a function."""
Case = Callable[[World], Generator[Call, Any, None]]
"""A case prepares the store, yields the call that is counted, and checks the answer sent back.

A call that changes nothing can be yielded TIMES times. Any other case is carried out TIMES times,
each time on an empty store."""

CASES: dict[str, Case] = {}
"""By name, which consists of the verb as in the code, and the case."""


def case(name: str) -> Callable[[Case], Case]:
    """Add a case."""

    def add(function: Case) -> Case:
        assert name not in CASES
        CASES[name] = function
        return function

    return add


class Counted(NamedTuple):
    """The cost of a call, and its statements."""

    cost: Cost
    statements: list[str]


def count(world: World, name: str) -> Counted:
    """Return the cost of the call of a case."""
    counted: list[Counted] = []
    while len(counted) < TIMES:
        world.wipe()
        # A case that fails is closed, and undoes its open changes.
        with closing(CASES[name](world)) as steps:
            counted += _count_calls(world, steps)
    return min(counted[1:])


def _count_calls(world: World, steps: Generator[Call, Any, None]) -> Iterator[Counted]:
    call = next(steps)
    while True:
        act = _act(world, call)
        world.counter.begin()
        answer = act()
        yield Counted(world.counter.cost(), world.counter.statements())
        try:
            call = steps.send(answer)
        except StopIteration:
            return


def _act(world: World, call: Call) -> Callable[[], Any]:
    if callable(call):
        return call
    if isinstance(call, list):
        return partial(world.store.apply, call)
    return lambda: world.store.apply([call])[0]


@contextmanager
def opened_world(url: str, folder: Path) -> Iterator[World]:
    """Open the store at a URL in a way that counts its statements."""
    with opened_tables(url) as tables, counting(url) as counter:
        if is_sqlite(url):
            clock = FakeClock()
            with closing(open_store(counter.url, clock=clock)) as store:
                yield World(store, clock, tables, counter, _first_rows(tables), folder)
            return
        with (
            pytest.MonkeyPatch.context() as patch,
            closing(open_store(counter.url)) as store,
            closing(ServerClock(url)) as clock,
        ):
            # On a busy machine a read may be slow, and then a thread would read whole indexes.
            patch.setattr("duly.store.postgres.floors.SLOW_SECONDS", HOUR_SECONDS)
            counter.begin()
            store.wake()
            # The connection for hints is open from here on, and only notifies.
            wait_until(counter.tap.has_notified, seconds=TIMEOUT, what="a hint is sent")
            yield World(store, clock, tables, counter, _first_rows(tables), folder)


def _first_rows(tables: Tables) -> dict[str, list[tuple[Any, ...]]]:
    rows = tables.everything()
    return {name: rows[name] for name in rows.keys() - {SCHEMA_TABLE, "duly_store"}}

"""The cost of each verb of the store: statements, and on PostgreSQL also round trips.

`statement_counts.txt` has a line for each case. A verb that needs more than its line fails its
test. A verb that needs less also fails, until its line is lowered. CONTRIBUTING.md describes how to
write the file. These tests run on one kind of each database, so they are not in the conformance
suite. Older versions of PostgreSQL may need other statements.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import psycopg
import pytest

from duly.store import ops as op_modules
from duly.store.ops.op import FACTS
from duly.store.postgres.wakeup import _NOTIFY_SOON
from duly.store.reads import Inspector
from tests.servers.kinds import PROMISED_VERSIONS
from tests.store.costs import (  # noqa: F401 - importing them adds their cases
    guard_cases,
    operator_cases,
    read_cases,
    run_cases,
    step_cases,
    transaction_cases,
    upkeep_cases,
)
from tests.store.costs.cases import CASES, World, count, opened_world
from tests.store.costs.counters import Cost, counting
from tests.store.costs.golden import FILE, read_costs, shown, text_of, write_cost

IS_WRITING = "DULY_WRITE_STATEMENT_COUNTS" in os.environ
KINDS = ("sqlite-wal", f"postgres-{PROMISED_VERSIONS[-1]}")


class Worlds:
    """One small store of each kind, which the tests of this module share."""

    def __init__(self, servers: Any, folder: Path) -> None:
        self.open = ExitStack()
        self._servers = servers
        self._folder = folder
        self._by_kind: dict[str, World] = {}

    def get(self, kind: str) -> World:
        """Return the store of a kind."""
        if kind not in self._by_kind:
            world = opened_world(self._new_url(kind), self._folder)
            self._by_kind[kind] = self.open.enter_context(world)
        return self._by_kind[kind]

    def _new_url(self, kind: str) -> str:
        if kind.startswith("sqlite"):
            return f"sqlite:///{self._folder / 'duly.db'}"
        server = self._servers.postgres(kind)
        url = server.create_database(template=self._servers.template(kind))
        self.open.callback(server.drop_database, url)
        return url


@pytest.fixture(scope="module")
def worlds(servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    """The stores on which the cases are carried out."""
    found = Worlds(servers, tmp_path_factory.mktemp("counted"))
    with found.open:
        yield found


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("store_kind", KINDS)
def test_a_verb_costs_what_its_line_allows(store_kind: str, case: str, worlds: Worlds):
    cost, statements = count(worlds.get(store_kind), case)
    database = store_kind.partition("-")[0]
    if IS_WRITING:
        write_cost(set(CASES), case, database, cost)
        return
    allowed = read_costs().get(case, {}).get(database)
    assert allowed is not None, f"{FILE.name} has no line for {case!r} on {database}"
    what = f"{case!r} on {database} takes {shown(cost)}, and its line allows {shown(allowed)}"
    listed = "\n".join(statements)
    assert cost.statements <= allowed.statements, f"{what}:\n{listed}"
    assert cost.round_trips <= allowed.round_trips, f"{what}:\n{listed}"
    assert cost == allowed, f"{what}; lower the line"


def test_every_op_and_every_read_has_a_case():
    for module in iter_modules(op_modules.__path__, f"{op_modules.__name__}."):
        import_module(module.name)
    verbs = {case.partition(":")[0] for case in CASES}
    reads = {name for name in vars(Inspector) if not name.startswith("_")}

    assert {kind.__name__ for kind in FACTS} - verbs == set()
    assert reads - verbs == set()


@pytest.mark.skipif(IS_WRITING, reason="the file is being written")
def test_the_file_has_one_line_for_each_case_in_order():
    costs = read_costs()

    assert list(costs) == sorted(CASES)
    assert FILE.read_text() == text_of(costs)


def test_on_sqlite_each_row_counts_as_a_statement_and_the_work_of_triggers_does_not_count(
    tmp_path: Path,
):
    file = tmp_path / "counted.db"
    with (
        counting(f"sqlite:///{file}") as counter,
        closing(sqlite3.connect(file, isolation_level=None)) as connection,
    ):
        connection.execute("CREATE TABLE one (x)")
        connection.execute("CREATE TABLE other (x)")
        connection.execute(
            "CREATE TRIGGER copy AFTER INSERT ON one BEGIN INSERT INTO other VALUES (new.x); END"
        )
        counter.begin()
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO one VALUES (?)", [(1,), (2,)])
        connection.execute("SELECT * FROM pragma_table_info('one')").fetchall()
        connection.execute("COMMIT")

        assert counter.cost() == Cost(0, 5)


@pytest.mark.parametrize("store_kind", KINDS[1:])
def test_on_postgres_a_pipeline_is_one_round_trip(store_url: str):
    with counting(store_url) as counter, psycopg.connect(counter.url, autocommit=True) as client:
        counted = []
        for send in (pipeline_of_five, two_in_one_message, a_refused_one, a_notification):
            send(client)  # The first execution may prepare the statement.
            counter.begin()
            send(client)
            counted.append(counter.cost())

        assert counted == [Cost(1, 5), Cost(1, 2), Cost(1, 1), Cost(0, 0)]


def pipeline_of_five(client: psycopg.Connection) -> None:
    with client.pipeline():
        for number in range(5):
            client.execute("SELECT %s::integer", [number])


def two_in_one_message(client: psycopg.Connection) -> None:
    client.execute("SELECT 1; SELECT 2")


def a_refused_one(client: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        client.execute("SELECT 1 / 0")


def a_notification(client: psycopg.Connection) -> None:
    client.execute(_NOTIFY_SOON, {"channel": "channel", "payload": ""})

"""Django's default on SQLite: transactions that begin without the write lock (deferred).

A transaction that has read may not write once another connection has committed: SQLite raises
"database is locked" at once, whatever the timeout. So duly must not read before it writes.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from django.db import connection, transaction

from duly import Run
from duly.integrations.django import duly_options
from tests.integrations.django import tasks
from tests.integrations.django.api import task
from tests.integrations.django.test_external_store import in_a_thread
from tests.store.postgres.verbs import InBackground

pytestmark = pytest.mark.stores("sqlite")
SOON = 20.0


@task()
@duly_options(key=lambda number: f"number {number}")
def keyed(number: int) -> int:
    return number


@pytest.fixture(autouse=True)
def _deferred(project: str) -> None:
    """Let Django begin transactions as it does by default, with a long lock timeout."""
    options = connection.settings_dict["OPTIONS"]
    assert options.pop("transaction_mode") == "IMMEDIATE"
    options["timeout"] = 30
    connection.close()


@pytest.fixture
def other(project: str) -> Iterator[sqlite3.Connection]:
    """Yield a connection other than Django's that does not wait for locks."""
    path = project.removeprefix("sqlite:///")
    with closing(
        sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    ) as connection:
        connection.execute("CREATE TABLE others (number integer)")
        yield connection


def enqueue_plainly(_run: Run[Any]) -> None:
    tasks.add.enqueue(1)


def enqueue_with_a_key(_run: Run[Any]) -> None:
    keyed.enqueue(1)


def cancel_a_run(run: Run[Any]) -> None:
    run.cancel()


ACTS = pytest.mark.parametrize("act", [enqueue_plainly, enqueue_with_a_key, cancel_a_run])
USES = pytest.mark.parametrize("is_first", [True, False])


@pytest.fixture
def run(backend, *, is_first: bool) -> Run[Any]:
    """Return a run. The application has or has not used Django's connection before."""
    found = backend.app.runs.get(tasks.add.enqueue(0).id)
    backend.app._external_store = None
    if not is_first:
        with transaction.atomic():
            backend.app.runs.list()
    return found


@contextmanager
def noticed(notice: Callable[[str], None]) -> Iterator[None]:
    """Call a function when a statement begins, including statements that Django does not see."""
    raw = connection.connection
    raw.set_trace_callback(notice)
    try:
        yield
    finally:
        raw.set_trace_callback(None)


@ACTS
@USES
def test_a_write_in_a_transaction_is_not_refused_because_another_connection_commits(
    run, other, act: Callable[[Run[Any]], None]
):
    committed_before = []

    def commit_first(statement: str) -> None:
        # The write is refused while this transaction has the write lock.
        with suppress(sqlite3.OperationalError):
            other.execute("INSERT INTO others VALUES (1)")
            committed_before.append(statement)

    with transaction.atomic(), noticed(commit_first):
        act(run)

    assert committed_before


@ACTS
@USES
def test_a_write_in_a_transaction_waits_for_another_connection(
    run, other, act: Callable[[Run[Any]], None]
):
    is_at_work = threading.Event()

    def write() -> None:
        with transaction.atomic(), noticed(lambda _statement: is_at_work.set()):
            act(run)

    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO others VALUES (1)")
    writing = InBackground(lambda: in_a_thread(write))
    try:
        assert is_at_work.wait(SOON)
        assert not writing.is_done
    finally:
        other.execute("COMMIT")

    writing.answer()

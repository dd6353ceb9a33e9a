"""Locks on PostgreSQL, where writes share connections and can wait for each other."""

import time
from contextlib import closing
from typing import Any

import pytest

from duly.errors import StoreBusy
from duly.store.ops.locks import AcquireLock, RenewLock
from duly.store.ops.operators import LimitQueue, PauseQueue
from duly.store.postgres.transaction import PostgresTransaction
from duly.store.store_factory import open_store
from duly.store.verbs.verb import carry_out
from tests.store.conformance.verbs import ACTOR, SECOND, TIMEOUT
from tests.store.postgres.verbs import InBackground, wait_for_a_lock


def take(store: Any, owner: str = "a") -> Any:
    return store.do(AcquireLock("index", owner, "a host", SECOND))


def renew(store: Any) -> bool:
    return store.do(RenewLock("index", "a", 1, SECOND))


def test_a_lock_is_renewed_although_another_write_of_its_process_is_blocked(url, store, connection):
    assert take(store).is_ours
    connection.execute("LOCK TABLE duly_queues IN EXCLUSIVE MODE")
    pausing = InBackground(lambda: store.apply([PauseQueue("default", True, ACTOR, "")]))
    wait_for_a_lock(url, what="the write that waits")

    began = time.monotonic()
    is_renewed = renew(store)
    seconds = time.monotonic() - began
    with pytest.raises(StoreBusy):
        pausing.answer()
    connection.rollback()

    assert is_renewed
    assert seconds < TIMEOUT


def test_a_lock_is_renewed_while_a_transaction_that_tries_to_take_it_is_open(store, url):
    assert take(store).is_ours
    with closing(open_store(url)) as another:
        line = another._here().writers._lines["work"]

        def ask(session: Any) -> tuple[Any, bool]:
            op = AcquireLock("index", "b", "another host", SECOND)
            found = carry_out(PostgresTransaction(session), op)
            return found, InBackground(lambda: renew(store)).answer()

        found, is_renewed = line.transact(ask)

    assert not found.is_ours
    assert is_renewed


def test_a_repeated_acquire_does_not_own_a_lock_that_another_owner_took_meanwhile(url, store):
    """For example, the reply to the first acquire was lost and the time of the lock has passed."""
    assert store.do(AcquireLock("index", "a", "a host", 1)).is_ours
    again = AcquireLock("index", "a", "a host", SECOND)
    with closing(open_store(url)) as another:
        line = another._here().writers._lines["work"]

        def take_first(session: Any) -> tuple[Any, InBackground]:
            op = AcquireLock("index", "b", "another host", 60 * SECOND)
            found = carry_out(PostgresTransaction(session), op)
            asking = InBackground(lambda: store.do(again))
            wait_for_a_lock(url, what="the first owner waits for the second")
            return found, asking

        found, asking = line.transact(take_first)
        answer = asking.answer()

    assert found.is_ours
    assert not answer.is_ours
    assert answer.holder == "another host"


def test_ops_of_several_kinds_lock_queues_in_one_order(url, store, connection):
    """Otherwise two commits with the same ops in another order would wait for each other."""
    first, last = PauseQueue("a", True, ACTOR, ""), LimitQueue("b", 3, ACTOR, "")
    store.apply([first, last])
    connection.execute("SELECT FROM duly_queues WHERE name = 'a' FOR UPDATE")
    writing = InBackground(lambda: store.apply([last, first]))
    wait_for_a_lock(url, what="the write that waits")

    free = connection.execute("SELECT name FROM duly_queues WHERE name = 'b' FOR UPDATE NOWAIT")
    assert free.fetchall() == [("b",)]
    connection.rollback()
    writing.answer()

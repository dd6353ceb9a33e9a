"""Suspending and waking meet on PostgreSQL: the second of the two sees the first."""

from contextlib import closing
from functools import partial
from typing import Any

import psycopg

from duly.callers import converse
from duly.store.opening import open_store
from duly.store.postgres.steps import SQL
from duly.store.step_ops import BeginStep, RecheckWaits, SendEvent, WakeRuns
from tests.store.conformance.test_steps import suspend
from tests.store.conformance.verbs import (
    cancel,
    claimed_ids,
    enqueue_and_claim,
    enqueue_one,
    tick,
)
from tests.store.postgres_verbs import InBackground, wait_for_a_lock


def wait_for_event(store: Any, name: str) -> Any:
    """Claim a run that has come to a wait for an event."""
    held = enqueue_and_claim(store)
    store.apply([BeginStep(held.run_id, held.claim_number, "name", "wait", name)])
    return held


def send(connection: psycopg.Connection[Any], store: Any, name: str) -> None:
    """Send an event in a transaction of the caller's, which stays open."""
    assert converse(connection, partial(store.send_elsewhere, SendEvent(name, "7")), store.wake)


def test_an_open_transaction_that_sent_an_event_delays_no_suspension(store, connection):
    held = wait_for_event(store, "paid")
    send(connection, store, "paid")

    InBackground(lambda: suspend(store, held)).answer()
    tick(store)
    before = claimed_ids(store)
    connection.commit()
    tick(store)

    assert before == []
    assert claimed_ids(store) == [held.run_id]


def test_an_open_transaction_that_sent_an_event_delays_no_other_write(store, connection):
    held = wait_for_event(store, "paid")
    suspend(store, held)
    send(connection, store, "paid")

    def write() -> Any:
        tick(store)
        (found,) = store.apply([RecheckWaits("", 100)])
        store.apply([WakeRuns((held.run_id,)), SendEvent("another", "7")])
        return found.roused, cancel(store, held.run_id)

    roused, cancelled = InBackground(write).answer()
    connection.commit()
    tick(store)

    assert roused == 0
    assert cancelled == "cancelled"
    assert claimed_ids(store) == []


def test_an_event_that_is_being_sent_keeps_only_its_own_senders_waiting(store, url, connection):
    with closing(open_store(url)) as another:
        send(connection, another, "paid")

    second = InBackground(lambda: store.apply([SendEvent("paid", "8")]))
    others = [store.apply([SendEvent(f"event {number}", "1")]) for number in range(5)]
    enqueue_one(store, key="k")
    is_waiting = not second.is_done
    connection.commit()

    assert is_waiting
    assert others == [[True]] * 5
    assert second.answer() == [False]


def test_a_transaction_that_waits_or_wakes_takes_a_bounded_number_of_locks(store, connection):
    names = [f"event {number}" for number in range(500)]
    connection.execute(SQL["lock_wakes"], {"names": names})

    held = connection.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    ).fetchone()

    assert held == (64,)


def test_a_waking_waits_for_the_suspension_that_is_under_way(url, store, connection):
    held = wait_for_event(store, "paid")
    place = {"ids": [held.run_id], "names": ["name"]}
    connection.execute(SQL["lock_waits"], place)
    assert connection.execute(SQL["is_awake"], place).fetchall() == []
    connection.execute(
        "INSERT INTO duly_waiting (id, task, queue, lane, priority, claim_number, created_at,"
        " due_at, arguments) SELECT id, task, queue, lane, priority, claim_number, created_at,"
        " due_at + interval '1 hour', arguments FROM duly_runs WHERE id = %s",
        [held.run_id],
    )
    connection.execute("DELETE FROM duly_runs WHERE id = %s", [held.run_id])

    store.apply([SendEvent("paid", "7")])
    waking = InBackground(lambda: tick(store))
    wait_for_a_lock(url, what="the tick waits for the suspension")
    connection.commit()
    waking.answer()

    assert claimed_ids(store) == [held.run_id]


def test_a_wake_up_waits_for_the_suspension_that_is_under_way(url, store, connection):
    held = enqueue_and_claim(store)
    store.apply([BeginStep(held.run_id, held.claim_number, "name", "gather", "[]")])
    place = {"ids": [held.run_id], "names": ["name"]}
    connection.execute(SQL["lock_waits"], place)

    waking = InBackground(lambda: store.apply([WakeRuns((held.run_id,))]))
    wait_for_a_lock(url, what="who wakes waits for the suspension")
    connection.rollback()

    assert waking.answer() == [0]

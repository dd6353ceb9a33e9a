"""Suspending and waking on PostgreSQL: the second of the two sees the first."""

from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest

from duly.connections import execute_dialogue
from duly.store.ops.operators import Cancel
from duly.store.ops.steps import BeginStep, RecheckWaits, SendEvent, WakeRuns
from duly.store.postgres.transaction import statement_text
from duly.store.store_factory import open_store
from tests.servers.processes import wait_until
from tests.store.conformance.test_steps import suspend
from tests.store.conformance.verbs import (
    TIMEOUT,
    cancel,
    claimed_ids,
    enqueue_and_claim,
    enqueue_one,
    tick,
)
from tests.store.postgres.verbs import InBackground, wait_for_a_lock


def wait_for_event(store: Any, name: str) -> Any:
    """Claim a run and begin its wait for an event."""
    held = enqueue_and_claim(store)
    store.do(BeginStep(held.run_id, held.claim_number, "name", "wait", name))
    return held


def send(connection: psycopg.Connection[Any], store: Any, name: str) -> None:
    """Send an event in a transaction of the caller, which stays open."""
    assert execute_dialogue(
        connection, partial(store.send_on_connection, SendEvent(name, "7")), store.wake
    )


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
        found = store.do(RecheckWaits("", 100))
        store.apply([WakeRuns((held.run_id,)), SendEvent("another", "7")])
        return found.roused, cancel(store, held.run_id)

    roused, cancelled = InBackground(write).answer()
    connection.commit()
    tick(store)

    assert roused == 0
    assert cancelled == "cancelled"
    assert claimed_ids(store) == []


def test_an_event_that_is_being_sent_delays_only_senders_of_the_same_event(store, url, connection):
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
    connection.execute(statement_text("steps.lock_wakes"), {"names": names})

    held = connection.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    ).fetchone()

    assert held == (64,)


def test_a_tick_that_wakes_runs_waits_for_a_concurrent_suspension(url, store, connection):
    held = wait_for_event(store, "paid")
    place = {"ids": [held.run_id], "names": ["name"]}
    connection.execute(statement_text("settle.lock_waits"), place)
    assert connection.execute(statement_text("settle.is_wait_satisfied"), place).fetchall() == []
    connection.execute(
        "INSERT INTO duly_waiting (id, task, queue, lane, priority, claim_number, created_at,"
        " due_at, arguments) SELECT id, task, queue, lane, priority, claim_number, created_at,"
        " due_at + interval '1 hour', arguments FROM duly_runs WHERE id = %s",
        [held.run_id],
    )
    connection.execute("DELETE FROM duly_runs WHERE id = %s", [held.run_id])
    connection.execute(
        "INSERT INTO duly_attempts"
        " (run_id, claim_number, generation, attempt, outcome, finished_at)"
        " VALUES (%s, %s, 1, 1, 'suspended', now())",
        [held.run_id, held.claim_number],
    )

    store.do(SendEvent("paid", "7"))
    waking = InBackground(lambda: tick(store))
    wait_for_a_lock(url, what="the tick waits for the suspension")
    connection.commit()
    waking.answer()

    assert claimed_ids(store) == [held.run_id]


def test_a_wake_up_waits_for_a_concurrent_suspension(url, store, connection):
    held = enqueue_and_claim(store)
    store.do(BeginStep(held.run_id, held.claim_number, "name", "gather", "[]"))
    place = {"ids": [held.run_id], "names": ["name"]}
    connection.execute(statement_text("settle.lock_waits"), place)

    waking = InBackground(lambda: store.apply([WakeRuns((held.run_id,))]))
    wait_for_a_lock(url, what="the wake-up waits for the suspension")
    connection.rollback()

    assert waking.answer() == [0]


_ADVISORY = """
SELECT objid::bigint FROM pg_locks
 WHERE locktype = 'advisory' AND pid = %s AND granted = %s
 ORDER BY 1
"""


@pytest.mark.parametrize("statement", ["steps.lock_wakes", "settle.lock_waits"])
def test_all_transactions_take_the_locks_of_waits_in_one_order(
    url, store, connection, statement: str
):
    """Then no two of them wait for each other, each with some of the locks."""
    names = [f"event {number}" for number in range(20)]
    held = [wait_for_event(store, name) for name in names]
    places = {
        "steps.lock_wakes": {"names": names},
        "settle.lock_waits": {"ids": [each.run_id for each in held], "names": ["name"] * len(held)},
    }
    every = "SELECT DISTINCT duly_wait_lock(name) FROM unnest(%s::text[]) AS name ORDER BY 1"
    locks = [lock for (lock,) in connection.execute(every, [names]).fetchall()]
    middle = locks[len(locks) // 2]
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [middle])

    with (
        closing(psycopg.connect(url)) as other,
        closing(psycopg.connect(url, autocommit=True)) as watcher,
    ):
        taking = InBackground(
            lambda: other.execute(statement_text(statement), places[statement]).fetchall()
        )
        wait_for_a_lock(url, what="the statement waits for the lock in the middle")
        pid = other.info.backend_pid
        taken, awaited = (
            [lock for (lock,) in watcher.execute(_ADVISORY, [pid, granted]).fetchall()]
            for granted in (True, False)
        )
        connection.rollback()
        taking.answer()

    low = [lock & 0xFFFFFFFF for lock in locks]
    assert awaited == [middle & 0xFFFFFFFF]
    assert taken == sorted(low[: locks.index(middle)])


_GATE_OF_WAITING_RUNS = """
CREATE TABLE gate (closed boolean);
INSERT INTO gate VALUES (true);
CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WHILE EXISTS (SELECT 1 FROM gate) LOOP
        PERFORM pg_sleep(0.005);
    END LOOP;
    RETURN new;
END $$;
CREATE TRIGGER gate BEFORE UPDATE ON duly_waiting FOR EACH ROW EXECUTE FUNCTION wait_at_the_gate();
"""


def test_cancelling_runs_that_an_event_wakes_does_not_deadlock(url, store):
    """The tick and the cancels lock the runs in the order of their ids."""
    held = sorted((wait_for_event(store, "paid") for _ in range(2)), key=lambda each: each.run_id)
    for each in held:
        suspend(store, each)
    store.do(SendEvent("paid", "7"))
    cancels = [Cancel(each.run_id, "tester") for each in reversed(held)]
    with (
        closing(open_store(url)) as another,
        closing(psycopg.connect(url, autocommit=True)) as watcher,
    ):
        watcher.execute(_GATE_OF_WAITING_RUNS)
        waking = InBackground(lambda: tick(another))
        wait_until(
            lambda: (
                watcher.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
                    " AND datname = current_database()"
                ).fetchone()
                is not None
            ),
            seconds=TIMEOUT,
            what="the tick has locked the first of the two runs",
        )
        cancelling = InBackground(lambda: store.apply(cancels))
        wait_for_a_lock(url, what="the cancels wait for the tick")
        watcher.execute("DELETE FROM gate")

        waking.answer()
        assert cancelling.answer() == ["cancelled"] * 2
        ((deadlocks,),) = watcher.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchall()
        assert deadlocks == 0

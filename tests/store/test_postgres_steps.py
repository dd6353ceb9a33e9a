"""Suspending and waking meet on PostgreSQL: whoever comes second sees the first."""

from duly.store.postgres.steps import SQL
from duly.store.step_ops import BeginStep, SendEvent, WakeRuns
from tests.store.conformance.test_steps import suspend
from tests.store.conformance.verbs import claimed_ids, enqueue_and_claim, tick
from tests.store.postgres_verbs import InBackground, wait_for_a_lock


def test_a_suspension_waits_for_the_event_that_is_being_sent(url, store, connection):
    held = enqueue_and_claim(store)
    store.apply([BeginStep(held.run_id, held.claim_number, "name", "wait", "paid")])
    connection.execute(SQL["lock_event"], {"name": "paid"})
    connection.execute(SQL["send"], {"name": "paid", "payload": "7"})
    connection.execute(SQL["rouse_waiting"], {"name": "paid"})

    suspending = InBackground(lambda: suspend(store, held))
    wait_for_a_lock(url, what="the suspension waits for the sender")
    connection.commit()
    suspending.answer()

    assert claimed_ids(store) == [held.run_id]


def test_an_event_waits_for_the_suspension_that_is_under_way(url, store, connection):
    held = enqueue_and_claim(store)
    store.apply([BeginStep(held.run_id, held.claim_number, "name", "wait", "paid")])
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

    sending = InBackground(lambda: store.apply([SendEvent("paid", "7")]))
    wait_for_a_lock(url, what="the sender waits for the suspension")
    connection.commit()
    sending.answer()
    tick(store)

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

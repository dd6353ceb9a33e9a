"""Keys on PostgreSQL, where several transactions can take one key at the same time."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest

from duly import faultpoints
from duly.connections import execute_dialogue
from duly.store.ops.operators import ResetKey
from duly.store.ops.runs import Accepted, Enqueue, Key, Settled
from duly.store.store_factory import open_store
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import (
    OTHER_TASK,
    TASK,
    TIMEOUT,
    claim_one,
    enqueue_and_claim,
    enqueue_one,
    fail,
    key,
    order,
    redrive,
    succeed,
)
from tests.store.postgres.verbs import InBackground, wait_for_a_lock

_GATE = """
CREATE TABLE gate (closed boolean);
INSERT INTO gate VALUES (true);
CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WHILE new.run_id::text = '{run_id}' AND EXISTS (SELECT 1 FROM gate) LOOP
        PERFORM pg_sleep(0.005);
    END LOOP;
    RETURN new;
END $$;
CREATE TRIGGER gate BEFORE INSERT ON duly_keys FOR EACH ROW EXECUTE FUNCTION wait_at_the_gate();
"""
_SECOND_GATE = 17
"""The number of an advisory lock."""
_STOP_AFTER_THE_INSERT = f"""
CREATE FUNCTION wait_at_the_second_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({_SECOND_GATE});
    RETURN NULL;
END $$;
CREATE TRIGGER second_gate AFTER INSERT ON duly_keys
   FOR EACH STATEMENT EXECUTE FUNCTION wait_at_the_second_gate();
"""
_IS_AT_THE_GATE = """
SELECT count(*) > 0 FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event = 'PgSleep'
"""
_LOCKS = """
SELECT count(*) FROM pg_locks
 WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
FEW_LOCKS = 60
"""The number of locks that a transaction needs for the tables and indexes that it touches."""


@pytest.fixture
def watcher(url: str, store: Any) -> Iterator[psycopg.Connection[Any]]:
    """A connection that observes the database, outside of any transaction."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        yield connection


def in_a_transaction_of_its_own(url: str, op: Enqueue) -> Accepted:
    with closing(open_store(url)) as store:
        return store.do(op)


def in_a_callers_transaction(url: str, op: Enqueue, *, autocommit: bool = False) -> Accepted:
    with (
        closing(open_store(url)) as store,
        psycopg.connect(url, autocommit=autocommit) as connection,
    ):
        return execute_dialogue(connection, partial(store.enqueue_on_connection, op), store.wake)


def on_a_connection_that_commits_by_itself(url: str, op: Enqueue) -> Accepted:
    return in_a_callers_transaction(url, op, autocommit=True)


def key_of(text: str, *other_names: str) -> Key:
    return key(text)._replace(other_names=other_names)


def test_an_enqueue_with_a_key_in_force_returns_while_another_transaction_writes_its_row(
    store, connection
):
    """As a settle does. If the two waited for each other, they would deadlock."""
    known = enqueue_one(store, key="k")
    connection.execute("UPDATE duly_keys SET expires_at = now() + interval '1 day'")

    asking = InBackground(lambda: store.apply([order(key="k"), order(key="new")]))
    try:
        answers = asking.answer()
    finally:
        connection.rollback()

    assert [(answer.run_id == known, answer.new) for answer in answers] == [
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize("enqueue", [in_a_transaction_of_its_own, in_a_callers_transaction])
def test_an_enqueue_returns_the_run_whose_key_was_taken_in_between(
    url, store, watcher, enqueue: Callable[[str, Enqueue], Accepted]
):
    late = order(key="k")
    watcher.execute(_GATE.format(run_id=late.run_id))

    waiting = InBackground(lambda: enqueue(url, late))
    wait_until(
        lambda: watcher.execute(_IS_AT_THE_GATE).fetchone() == (True,),
        seconds=TIMEOUT,
        what="the insert of the key to be under way",
    )
    first = enqueue_one(store, key="k")
    watcher.execute("DELETE FROM gate")

    answer = waiting.answer()
    assert (answer.run_id, answer.new) == (first, False)
    assert store.get_run(late.run_id) is None


@pytest.mark.parametrize("enqueue", [in_a_transaction_of_its_own, in_a_callers_transaction])
def test_an_enqueue_returns_the_run_whose_retry_took_the_key_in_between(
    url, store, watcher, enqueue: Callable[[str, Enqueue], Accepted]
):
    first = enqueue_and_claim(store, key=key("k", active_only=True))
    assert succeed(store, first) is Settled.DONE
    late = order(key="k")
    watcher.execute(_GATE.format(run_id=late.run_id))

    waiting = InBackground(lambda: enqueue(url, late))
    wait_until(
        lambda: watcher.execute(_IS_AT_THE_GATE).fetchone() == (True,),
        seconds=TIMEOUT,
        what="the insert of the key to be under way",
    )
    assert redrive(store, first.run_id).done
    watcher.execute("DELETE FROM gate")

    answer = waiting.answer()
    assert (answer.run_id, answer.new) == (first.run_id, False)
    assert store.get_run(late.run_id) is None


@pytest.mark.parametrize(
    "enqueue", [in_a_callers_transaction, on_a_connection_that_commits_by_itself]
)
@pytest.mark.parametrize("is_expired", [False, True])
def test_a_run_has_its_key_if_the_key_is_reset_inside_its_enqueue(
    url, store, watcher, enqueue: Callable[[str, Enqueue], Accepted], is_expired
):
    """The reset follows after the insert has conflicted with the key of another run."""
    late = order(key="k")
    if is_expired:
        enqueue_one(store, key="k")
        watcher.execute("UPDATE duly_keys SET expires_at = duly_now() - interval '1 hour'")
    watcher.execute(_GATE.format(run_id=late.run_id))
    watcher.execute(_STOP_AFTER_THE_INSERT)

    waiting = InBackground(lambda: enqueue(url, late))
    wait_until(
        lambda: watcher.execute(_IS_AT_THE_GATE).fetchone() == (True,),
        seconds=TIMEOUT,
        what="the insert of the key to be under way",
    )
    if not is_expired:
        enqueue_one(store, key="k")
    watcher.execute(f"SELECT pg_advisory_lock({_SECOND_GATE})")
    watcher.execute("DELETE FROM gate")
    wait_for_a_lock(url, what="the insert to have met the key of the other run")
    assert store.apply([ResetKey(TASK, "k", "tester")]) == [True]
    watcher.execute(f"SELECT pg_advisory_unlock({_SECOND_GATE})")

    answer = waiting.answer()
    assert (answer.run_id, answer.new) == (late.run_id, True)
    again = store.do(order(key="k"))
    assert (again.run_id, again.new) == (late.run_id, False)


def test_a_retry_takes_the_key_of_a_run_that_ends_in_between(store, watcher):
    first = enqueue_and_claim(store, key=key("k", active_only=True))
    assert fail(store, first) is Settled.DONE
    second = enqueue_and_claim(store, key=key("k", active_only=True))
    watcher.execute(_GATE.format(run_id=first.run_id))

    waiting = InBackground(lambda: redrive(store, first.run_id))
    wait_until(
        lambda: watcher.execute(_IS_AT_THE_GATE).fetchone() == (True,),
        seconds=TIMEOUT,
        what="the retry to be under way",
    )
    assert succeed(store, second) is Settled.DONE
    watcher.execute("DELETE FROM gate")
    assert waiting.answer().done

    answer = store.do(order(key=key("k", active_only=True)))
    assert (answer.run_id, answer.new) == (first.run_id, False)


@pytest.mark.parametrize(
    "enqueue",
    [
        in_a_transaction_of_its_own,
        in_a_callers_transaction,
        on_a_connection_that_commits_by_itself,
    ],
)
@pytest.mark.parametrize("other_knows", [True, False])
def test_an_enqueue_returns_the_run_whose_key_was_taken_under_another_name_in_between(
    url, store, watcher, enqueue: Callable[[str, Enqueue], Accepted], other_knows
):
    late = order(task=TASK, key=key_of("k", OTHER_TASK))
    watcher.execute(_GATE.format(run_id=late.run_id))

    waiting = InBackground(lambda: enqueue(url, late))
    wait_until(
        lambda: watcher.execute(_IS_AT_THE_GATE).fetchone() == (True,),
        seconds=TIMEOUT,
        what="the insert of the key to be under way",
    )
    # A process from before the rename does not know the new name.
    names = (TASK,) if other_knows else ()
    other = order(task=OTHER_TASK, key=key_of("k", *names))
    first = InBackground(lambda: on_a_connection_that_commits_by_itself(url, other))
    assert first.answer().new
    watcher.execute("DELETE FROM gate")

    answer = waiting.answer()
    assert (answer.run_id, answer.new) == (other.run_id, False)
    assert store.get_run(late.run_id) is None
    assert store.do(order(task=TASK, key=key_of("k", OTHER_TASK))).run_id == other.run_id


@pytest.mark.parametrize("is_expired", [False, True])
def test_a_caller_that_waited_for_a_key_locks_no_row_of_the_run_that_holds_it(
    url, store, connection, is_expired
):
    wanted = key_of("k", OTHER_TASK)._replace(active_only=True)
    if is_expired:
        succeed(store, enqueue_and_claim(store, key=wanted))
    with psycopg.connect(url) as waiting:
        first = execute_dialogue(
            connection, partial(store.enqueue_on_connection, order(key=wanted)), store.wake
        )
        asking = InBackground(
            lambda: execute_dialogue(
                waiting, partial(store.enqueue_on_connection, order(key=wanted)), store.wake
            )
        )
        wait_for_a_lock(url, what="the second caller to wait for the key")
        connection.commit()
        assert (asking.answer().run_id, asking.answer().new) == (first.run_id, False)

        # The second caller's transaction is still open.
        held = claim_one(store)
        ending = InBackground(lambda: succeed(store, held))
        try:
            assert ending.answer() is Settled.DONE
        finally:
            waiting.rollback()


def test_a_key_of_a_process_that_does_not_know_the_new_name_is_found(store):
    first = store.do(order(task=TASK, key=key_of("k", OTHER_TASK)))

    answer = store.do(order(task=OTHER_TASK, key="k"))

    assert (answer.run_id, answer.new) == (first.run_id, False)


def test_a_key_is_reset_under_all_names(store):
    enqueue_one(store, task=TASK, key=key_of("k", OTHER_TASK))

    assert store.apply([ResetKey(OTHER_TASK, "k", "tester")]) == [True]

    assert store.do(order(task=OTHER_TASK, key=key_of("k", TASK))).new


def test_a_redriven_run_holds_its_key_under_all_names(store):
    held = enqueue_and_claim(store, key=key_of("k", OTHER_TASK)._replace(active_only=True))
    succeed(store, held)

    assert redrive(store, held.run_id, other_names=(OTHER_TASK,)).done

    answer = store.do(order(task=OTHER_TASK, key="k"))
    assert (answer.run_id, answer.new) == (held.run_id, False)


def test_a_retry_that_is_refused_holds_its_key_under_no_name(store):
    held = enqueue_and_claim(store, key=key_of("k", OTHER_TASK)._replace(active_only=True))
    succeed(store, held)
    # A process that knows only one name takes the key only under that name.
    other = enqueue_one(store, task=OTHER_TASK, key=key("k", active_only=True))

    refused = redrive(store, held.run_id, other_names=(OTHER_TASK,))

    assert (refused.done, refused.held_by) == (False, other)
    assert store.do(order(task=TASK, key=key("k", active_only=True))).new


@pytest.mark.parametrize("other_names", [(), ("shop:old", "shop:older")])
def test_a_batch_with_keys_takes_no_lock_per_key(store, watcher, other_names: tuple[str, ...]):
    seen = []
    faultpoints.arm(
        "enqueue.before_commit", lambda: seen.append(watcher.execute(_LOCKS).fetchone()[0])
    )

    answers = store.apply([order(key=key_of(f"k{n}", *other_names)) for n in range(500)])

    assert all(answer.new for answer in answers)
    assert seen
    assert max(seen) < FEW_LOCKS


def test_a_callers_transaction_with_keys_takes_no_lock_per_key(store, connection, watcher):
    for number in range(200):
        execute_dialogue(
            connection, partial(store.enqueue_on_connection, order(key=f"k{number}")), store.wake
        )

    held = watcher.execute(_LOCKS).fetchone()[0]
    connection.commit()

    assert held < FEW_LOCKS

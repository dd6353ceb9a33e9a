"""Behaviour of PostgreSQL only: concurrent writers, and transactions of callers.

Tests of behaviour that both databases share are in `conformance`.
"""

import threading
import time
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest

from duly.connections import execute_dialogue
from duly.core.concurrency_limits import limited_lane, range_of
from duly.errors import StoreFull, StoreUnavailable, WouldBlockItself
from duly.store.ops.recovery import RecoverOrphans
from duly.store.ops.runs import Enqueue, Settled
from duly.store.ops.steps import SendEvent
from duly.store.postgres import held_names
from duly.store.postgres.address import Address
from duly.store.postgres.claim import SQL as CLAIM
from duly.store.postgres.enqueue import SQL as ENQUEUE
from duly.store.postgres.session_settings import HOT
from duly.store.postgres.settle import SQL as SETTLE
from duly.store.postgres.settle import _endings
from duly.store.postgres.wakeup import PostgresHints
from duly.store.store_factory import open_store
from tests.store.conformance.verbs import (
    LANE,
    OTHER_WORKER,
    TASK,
    TIMEOUT,
    accept,
    claim,
    claimed_ids,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    key,
    lost,
    order,
    recover,
    register,
    state_of,
    succeed,
    success,
    tick,
)
from tests.store.postgres.verbs import PLACE, InBackground, claim_without_commit, wait_for_a_lock

# -- rule 5: claim and recover cannot pass each other --


def test_recovery_waits_for_a_concurrent_claim_and_takes_its_runs(url, store, connection):
    wanted = enqueue_many(store, 3)
    claimed = claim_without_commit(connection)

    recovery = InBackground(lambda: recover(store))
    wait_for_a_lock(url, what="recovery waits for the claim")
    still_running = not recovery.is_done
    connection.commit()

    assert still_running
    assert sorted(claimed) == sorted(wanted)
    assert sorted(recovery.answer()) == sorted(wanted)
    assert {state_of(store, run_id) for run_id in wanted} == {"queued"}


def test_recovery_takes_nothing_of_a_claim_that_rolls_back(url, store, connection):
    run_id = enqueue_one(store)
    claim_without_commit(connection)

    recovery = InBackground(lambda: recover(store))
    wait_for_a_lock(url, what="recovery waits for the claim")
    connection.rollback()

    assert recovery.answer() == []
    assert state_of(store, run_id) == "queued"


def test_a_claim_after_a_recovery_takes_nothing(url, store):
    held = enqueue_and_claim(store)
    enqueue_one(store)
    judging, judged = threading.Event(), threading.Event()

    def judge(run):
        judging.set()
        assert judged.wait(TIMEOUT)
        return lost(run)

    with closing(open_store(url)) as other:
        recovery = InBackground(lambda: recover(other, judge=judge))
        assert judging.wait(TIMEOUT)
        late_claim = InBackground(lambda: claim(store))
        wait_for_a_lock(url, what="the claim waits for recovery")
        judged.set()

        assert late_claim.answer() == []
        assert recovery.answer() == [held.run_id]


def test_two_concurrent_claims_share_the_runs_and_lock_only_the_runs_they_take(store, connection):
    enqueue_many(store, 30)
    register(store, OTHER_WORKER)
    first = claim_without_commit(connection)

    second = claimed_ids(store, 100, worker=OTHER_WORKER)
    connection.commit()

    assert len(first) == 10
    assert len(second) == 20
    assert not set(first) & set(second)


def test_orphans_that_another_worker_is_recovering_are_skipped(store, connection):
    held = enqueue_and_claim(store)
    connection.execute("DELETE FROM duly_workers")
    connection.commit()
    connection.execute("SELECT 1 FROM duly_runs WHERE id = %s FOR UPDATE", [held.run_id])

    while_locked = store.do(RecoverOrphans(lost, 10))
    connection.rollback()

    assert while_locked == []
    assert store.do(RecoverOrphans(lost, 10)) == [held.run_id]


# -- rule 13: a caller's open transaction delays no other caller --


def enqueue_in(connection: psycopg.Connection[Any], store: Any, op: Enqueue) -> tuple[Any, ...]:
    """Enqueue on a connection of the caller."""
    return execute_dialogue(connection, partial(store.enqueue_on_connection, op), store.wake)


def test_an_open_transaction_with_a_key_delays_only_enqueues_with_that_key(store, connection):
    """The transaction is open during this test, so a call that waited for it would not return."""
    running = enqueue_and_claim(store, key="running")
    mine = order(key="mine")
    assert enqueue_in(connection, store, mine) == (mine.run_id, True, False)
    known = enqueue_in(connection, store, order(key="running"))
    enqueue_in(connection, store, order())

    unkeyed = enqueue_many(store, 2)
    keyed = enqueue_one(store, key="other")
    together = store.apply([order(key="third"), order()])
    settled = succeed(store, running)
    found = claimed_ids(store)
    ticked = tick(store)
    connection.rollback()

    assert known == (running.run_id, False, False)
    assert settled is Settled.DONE
    assert sorted(found) == sorted([*unkeyed, keyed, *(answer.run_id for answer in together)])
    assert ticked.promoted == 0
    assert store.get_run(mine.run_id) is None


@pytest.mark.parametrize("ends_by", ["commit", "rollback"])
def test_the_same_key_waits_for_the_transaction_that_takes_it(store, connection, ends_by):
    theirs, ours = order(key="k"), order(key="k")
    enqueue_in(connection, store, theirs)

    waiting = InBackground(lambda: store.apply([ours, order()]))
    enqueue_one(store, key="another")
    still_waiting = not waiting.is_done
    getattr(connection, ends_by)()
    accepted = waiting.answer()[0]

    assert still_waiting
    if ends_by == "commit":
        assert (accepted.run_id, accepted.new) == (theirs.run_id, False)
    else:
        assert (accepted.run_id, accepted.new) == (ours.run_id, True)
    assert len(claimed_ids(store)) == 3


def test_a_submission_with_a_held_key_is_answered_after_the_transaction(store, connection):
    theirs = order(key="k")
    enqueue_in(connection, store, theirs)
    answered = threading.Event()
    answers: list[Any] = []

    def done(answer):
        answers.append(answer)
        answered.set()

    store.submit([order(key="k"), order()], done)
    assert not answered.wait(0.05)
    connection.commit()

    assert answered.wait(TIMEOUT)
    assert answers[0][0].run_id == theirs.run_id


def test_an_error_names_the_key_that_is_held_for_too_long(store, url, connection, monkeypatch):
    monkeypatch.setattr(held_names, "HELD_SECONDS", 0.1)
    with closing(open_store(url)) as another:
        enqueue_in(connection, another, order(key="invoice-7"))

    with pytest.raises(
        StoreUnavailable, match=r"'invoice-7'.*commit or roll back that transaction"
    ):
        store.do(order(key="invoice-7"))

    connection.rollback()
    assert accept(store, key="invoice-7").new


def test_a_write_fails_soon_with_advice_if_the_callers_own_transaction_holds_its_key(
    store, connection
):
    enqueue_in(connection, store, order(key="invoice-7"))
    execute_dialogue(
        connection, partial(store.send_on_connection, SendEvent("paid", "1")), store.wake
    )
    for act in (order(key="invoice-7"), SendEvent("paid", "1")):
        began = time.monotonic()
        with pytest.raises(WouldBlockItself, match=r"using\(connection=…\)"):
            store.do(act)
        assert time.monotonic() - began < 4  # The write gives up after two seconds.

    connection.rollback()
    assert accept(store, key="invoice-7").new


def test_a_taken_key_does_not_abort_the_callers_transaction(store, connection):
    first = enqueue_one(store, key="k")
    connection.execute("CREATE TABLE orders (id integer)")

    same = enqueue_in(connection, store, order(key="k"))
    other = enqueue_in(connection, store, order(key=key("k", fingerprint="other")))
    connection.execute("INSERT INTO orders VALUES (1)")
    connection.commit()

    assert same == (first, False, False)
    assert other == (first, False, True)
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_an_enqueue_in_a_callers_transaction_exists_if_and_only_if_the_transaction_commits(
    store, connection
):
    kept, dropped = order(tags={"a": "b"}), order(tags={"a": "b"}, key="k")
    enqueue_in(connection, store, kept)
    connection.commit()
    enqueue_in(connection, store, dropped)
    connection.rollback()

    assert claimed_ids(store) == [kept.run_id]
    assert store.get_run(dropped.run_id) is None
    assert accept(store, key="k").new


def test_a_callers_commit_is_durable_and_wakes_workers(store, connection):
    woken = threading.Event()
    end = store.listen(woken.set)
    assert woken.wait(TIMEOUT)  # The first wake-up follows the connect.
    assert store.hears_hints()
    woken.clear()
    connection.execute("SET synchronous_commit = off")
    connection.commit()

    enqueue_in(connection, store, order())
    during = connection.execute("SHOW synchronous_commit").fetchone()
    connection.commit()

    assert woken.wait(TIMEOUT)
    assert during == ("on",)
    assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
    end()


def test_an_enqueue_whose_hint_is_refused_succeeds(store, monkeypatch):
    enqueue_one(store)
    hints = store._here().writers.hints
    monkeypatch.setattr(hints, "may_piggyback", lambda: True)
    texts = ENQUEUE._texts | {"ready_one_and_hint": "SELECT no_such_function()"}
    monkeypatch.setattr(ENQUEUE, "_texts", texts)

    run_id = enqueue_one(store)

    assert state_of(store, run_id) == "queued"
    monkeypatch.undo()
    assert not hints.may_piggyback()


def test_a_lone_enqueue_carries_its_hint_where_all_commits_are_slow(url):
    hints = PostgresHints(Address(url), lambda _: None)

    hints.note_piggybacked(0.05)
    assert not hints.may_piggyback()
    hints.note_plain_insert(0.04)
    assert hints.may_piggyback()
    for _ in range(50):
        hints.note_piggybacked(0.1)
    assert hints.may_piggyback()


def test_lone_enqueues_that_wait_for_other_commits_carry_no_hint_for_a_while(url):
    hints = PostgresHints(Address(url), lambda _: None)
    hints.note_plain_insert(0.002)
    hints.note_piggybacked(0.02)
    assert hints.may_piggyback()

    hints.note_piggybacked(0.02)
    hints.note_piggybacked(0.02)
    hints.note_plain_insert(0.002)

    assert not hints.may_piggyback()


def test_a_statement_that_failed_while_it_was_prepared_does_not_affect_the_next(store):
    enqueue_one(store)
    session = store._here().writers._lines["work"]._session
    for _ in range(2):
        with pytest.raises(psycopg.Error):
            session.execute_alone("SELECT no_such_column", {})

    assert session.execute_alone("SELECT 1 + %(n)s::integer", {"n": 1}) == [(2,)]


# -- the cost of a claim --


def explained(connection: psycopg.Connection[Any], sql: str, place: dict[str, Any]) -> Any:
    """Run a statement as the store's sessions do, return the plan with its costs, and undo it."""
    for name, setting in HOT.items():
        connection.execute("SELECT set_config(%s, %s, true)", [name, setting])
    explain = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql
    plan = connection.execute(explain, place).fetchone()[0][0]["Plan"]
    connection.rollback()
    return plan


def buffers_of_a_claim(connection: psycopg.Connection[Any]) -> int:
    plan = explained(connection, CLAIM["take"], PLACE | {"limits": "{50}"})
    assert "Seq Scan" not in str(plan)
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def test_a_claim_costs_the_same_with_any_number_of_waiting_or_finished_runs(store, connection):
    # The statistics describe empty tables, and must not mislead the plan.
    connection.execute("ANALYZE")
    connection.commit()
    enqueue_many(store, 200)
    buffers_of_a_claim(connection)
    alone = buffers_of_a_claim(connection)
    connection.execute(
        "INSERT INTO duly_waiting"
        " (id, task, queue, lane, priority, created_at, due_at, arguments)"
        " SELECT gen_random_uuid(), task, queue, lane, 0, now(), now() + interval '1 day', ''"
        " FROM duly_runs, generate_series(1, 100)"
    )
    connection.execute(
        "INSERT INTO duly_history (id, task, queue, lane, state, outcome, priority, generation,"
        " claim_number, attempt, retries_used, crashes, created_at, due_at, finished_at, arguments)"
        " SELECT gen_random_uuid(), task, queue, lane, 'succeeded', 'returned', 0, 1, 1, 1, 0, 0,"
        " now(), now(), now(), '' FROM duly_runs, generate_series(1, 100)"
    )
    connection.commit()
    buffers_of_a_claim(connection)

    among_many = buffers_of_a_claim(connection)

    assert among_many == pytest.approx(alone, rel=0.05)


def test_a_claim_under_a_limit_costs_the_same_with_any_number_of_waiting_runs(store, connection):
    lane = limited_lane(LANE, TASK)
    name, _ = range_of(lane)
    statements = {
        "limited_lanes": {"after": "", "most": 100},
        "running_in_limit": {"name": name},
        "take_limited": PLACE
        | {"lane": lane, "queue": None, "closed": "{}", "room": 5, "last": "0"},
    }

    def costs():
        plans = [explained(connection, CLAIM[name], place) for name, place in statements.items()]
        assert not any(scans(plan, "duly_runs") for plan in plans)
        return sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans)

    connection.execute("ANALYZE")
    connection.commit()
    enqueue_many(store, 20, lane=lane)
    costs()
    few = costs()
    enqueue_many(store, 2_000, lane=lane)
    enqueue_many(store, 2_000)
    costs()

    assert costs() <= few * 2


def scans(plan: Any, table: str) -> bool:
    """Return whether a plan reads a whole table."""
    here = plan["Node Type"] == "Seq Scan" and plan.get("Relation Name") == table
    return here or any(scans(part, table) for part in plan.get("Plans", []))


def test_a_settle_finds_its_runs_by_their_ids_under_any_statistics(store, connection):
    enqueue_many(store, 500)
    # No run is running when the rows are counted, so an index of running runs would look empty.
    connection.execute("ANALYZE")
    connection.commit()
    columns = _endings([success(found) for found in claim(store, 200)])

    plan = str(explained(connection, SETTLE["finish"], columns))

    assert "duly_runs_pkey" in plan
    assert "duly_runs_held" not in plan


# -- a disk that is full --


def test_a_full_disk_raises_an_error_and_leaves_nothing_half_written(store, connection):
    connection.execute(
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';"
        " END $$"
    )
    connection.execute(
        "CREATE TRIGGER full_disk AFTER INSERT ON duly_runs FOR EACH ROW EXECUTE FUNCTION fill()"
    )
    connection.commit()

    with pytest.raises(StoreFull, match=r"(?s)the disk of .* is full .*; free disk space"):
        store.do(order(key="k"))

    connection.execute("DROP TRIGGER full_disk ON duly_runs")
    connection.commit()
    again = enqueue_one(store, key="k")
    assert claimed_ids(store) == [again]

"""Reschedules race with everything else that moves a queued run: no run is lost or runs twice."""

from collections.abc import Callable
from typing import Any

import pytest

from duly.core.states import SlotKind
from duly.errors import StoreUnavailable
from duly.store.ops.operators import RescheduleRun
from duly.store.postgres.transaction import PostgresTransaction
from tests.store.conformance.test_reschedule import reschedule
from tests.store.conformance.test_steps import begin, suspend
from tests.store.conformance.verbs import (
    ACTOR,
    MINUTE,
    at_once,
    cancel,
    claim,
    claimed_ids,
    enqueue_many,
    enqueue_one,
    hand_over,
    listed_ids,
    pause,
    register,
    resume,
    retry_later,
    run_of,
    succeed,
    take,
    tick,
)
from tests.store.separate_commits import SeparateCommits

pytestmark = pytest.mark.pgbouncer


def all_moved(store: Any, ids: list[str], **changes: Any) -> dict[str, Any]:
    """Reschedule runs one by one, and return the answers."""
    return {run_id: reschedule(store, run_id, **changes) for run_id in ids}


def test_a_claim_and_a_reschedule_at_once_agree(store, open_another, worker):
    ids = enqueue_many(store, 60)
    theirs = open_another()

    def claim_all() -> set[str]:
        found: list[str] = []
        while batch := claimed_ids(store, 4):
            found += batch
        return set(found)

    claimed, answers = at_once(claim_all, lambda: all_moved(theirs, ids, delay=10 * MINUTE))

    moved = {run_id for run_id, answer in answers.items() if answer.done}
    assert moved.isdisjoint(claimed)
    assert moved | claimed == set(ids)
    assert {answers[run_id].state for run_id in claimed} <= {"running"}
    assert {run_of(store, run_id).state for run_id in moved} <= {"queued"}


def test_a_cancel_and_a_reschedule_at_once_leave_a_cancelled_run(store, open_another, worker):
    ids = enqueue_many(store, 60)
    theirs = open_another()

    cancels, _ = at_once(
        lambda: [cancel(store, run_id) for run_id in ids],
        lambda: all_moved(theirs, ids, delay=0, queue="mail"),
    )

    assert cancels == ["cancelled"] * len(ids)
    assert claim(store) == []
    assert sorted(listed_ids(store, states=("cancelled",))) == ids


def test_the_settle_of_a_retry_and_a_reschedule_at_once_keep_the_run(store, open_another, worker):
    ids = enqueue_many(store, 40)
    claims = claim(store)
    theirs = open_another()

    _, answers = at_once(
        lambda: [retry_later(store, found, 60.0) for found in claims],
        lambda: all_moved(theirs, ids, delay=0),
    )

    ready = {run_id for run_id, answer in answers.items() if answer.done}
    assert {answers[run_id].state for run_id in set(ids) - ready} <= {"running"}
    assert set(claimed_ids(store)) == ready
    assert sorted(listed_ids(store)) == ids


def test_promotions_and_reschedules_at_once_leave_each_run_once(store, open_another, worker, clock):
    ids = enqueue_many(store, 100, delay_seconds=10)
    clock.advance(10)
    theirs = open_another()

    def promote_all() -> None:
        while tick(store, 7).promoted:
            pass

    _, answers = at_once(promote_all, lambda: all_moved(theirs, ids, priority=5))

    assert all(answer.done for answer in answers.values())
    tick(store)
    assert sorted(claimed_ids(store)) == ids
    assert {run_of(store, run_id).priority for run_id in ids} == {5}


def test_reschedules_at_once_change_each_run_one_after_the_other(store, open_another, worker):
    ids = enqueue_many(store, 40)
    mine, theirs = store, open_another()

    at_once(
        lambda: all_moved(mine, ids, delay=MINUTE, priority=1),
        lambda: all_moved(theirs, ids, queue="mail"),
    )

    runs = [run_of(store, run_id) for run_id in ids]
    assert {(run.queue, run.priority) for run in runs} == {("mail", 1)}
    assert {run.due_at > run.created_at for run in runs} == {True}, "no change undoes another"
    assert [len(store.list_audit_entries(run_id, 5)) for run_id in ids] == [2] * len(ids)


def test_a_pause_and_reschedules_at_once_park_each_run_once(store, open_another, worker):
    ids = enqueue_many(store, 60)
    theirs = open_another()

    def pause_and_park() -> None:
        pause(store)
        while tick(store, 7).parked:
            pass

    _, answers = at_once(pause_and_park, lambda: all_moved(theirs, ids, priority=5))

    assert all(answer.done for answer in answers.values())
    assert claim(store) == []
    resume(store)
    tick(store)
    assert sorted(claimed_ids(store)) == ids


def test_a_relay_and_a_reschedule_at_once_never_both_have_a_run(store, open_another, worker):
    ids = enqueue_many(store, 60, lane=SlotKind.CARRIED)
    theirs = open_another()

    def hand_all_over() -> set[str]:
        sent: set[str] = set()
        while batch := hand_over(store, limit=4):
            sent |= {message.run_id for message in batch}
        return sent

    sent, answers = at_once(hand_all_over, lambda: all_moved(theirs, ids, delay=MINUTE))

    moved = {run_id for run_id, answer in answers.items() if answer.done}
    assert moved.isdisjoint(sent)
    assert moved | sent == set(ids)


def test_reschedules_that_commit_separately_are_each_done_or_not(store, worker):
    ids = enqueue_many(store, 4)
    separate = SeparateCommits(store, seed=3, rate=1.0)
    ops = [RescheduleRun(run_id, ACTOR, delay=MINUTE, queue="mail") for run_id in ids]

    with pytest.raises(StoreUnavailable, match="between two ops"):
        separate.apply(ops)

    (failure,) = separate.failures
    moved = {op.run_id for op in failure.written}
    assert 0 < len(moved) < len(ids)
    assert {run_id for run_id in ids if run_of(store, run_id).queue == "mail"} == moved
    assert [answer.done for answer in store.apply(ops)] == [True] * len(ids), "it can be repeated"
    assert sorted(listed_ids(store)) == ids


# -- between the read and the write of a reschedule, on a server with several writers --


def claimed_meanwhile(store: Any, run_id: str) -> str:
    assert run_id in claimed_ids(store)
    return "running"


def cancelled_meanwhile(store: Any, run_id: str) -> str:
    cancel(store, run_id)
    return "cancelled"


def ended_meanwhile(store: Any, run_id: str) -> str:
    succeed(store, *claim(store))
    return "succeeded"


def parked_meanwhile(store: Any, run_id: str) -> str:
    pause(store)
    tick(store)
    return "queued"


def moved_meanwhile(store: Any, run_id: str) -> str:
    reschedule(store, run_id, priority=9)
    return "queued"


def delayed_meanwhile(store: Any, run_id: str) -> str:
    reschedule(store, run_id, delay=3 * MINUTE)
    return "queued"


def retried_meanwhile(store: Any, run_id: str) -> str:
    retry_later(store, *claim(store), 3 * 60.0)
    return "queued"


def interfere(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> list[Any]:
    """Let something happen once, directly after a reschedule has read its run."""
    plain, results = PostgresTransaction.row, []

    def row(self: PostgresTransaction, name: str, /, **parameters: Any) -> Any:
        found = plain(self, name, **parameters)
        if name == "operate.queued" and not results:
            results.append(None)
            results[0] = act()
        return found

    monkeypatch.setattr(PostgresTransaction, "row", row)
    return results


@pytest.mark.stores("postgres", "pgbouncer")
@pytest.mark.parametrize(
    "act",
    [
        claimed_meanwhile,
        cancelled_meanwhile,
        ended_meanwhile,
        parked_meanwhile,
        moved_meanwhile,
        delayed_meanwhile,
        retried_meanwhile,
    ],
)
def test_a_run_that_changes_under_a_reschedule_is_read_again(
    store, open_another, worker, monkeypatch, act
):
    run_id = enqueue_one(store)
    other = open_another()
    states = interfere(monkeypatch, lambda: act(other, run_id))

    answer = reschedule(store, run_id, queue="mail")

    run = run_of(store, run_id)
    assert (answer.state, run.state) == (states[0], states[0])
    assert answer.done == (run.state == "queued")
    assert run.queue == ("mail" if answer.done else "default")
    assert listed_ids(store) == [run_id]
    assert run.priority == (9 if act is moved_meanwhile else 0)
    if act in {delayed_meanwhile, retried_meanwhile}:
        assert run.due_at >= run.created_at + 3 * MINUTE, "the newer time stays"


@pytest.mark.stores("postgres", "pgbouncer")
def test_a_run_that_comes_to_a_wait_under_a_reschedule_stays_as_it_is(
    store, open_another, worker, monkeypatch
):
    run_id = enqueue_one(store)
    other = open_another()

    def suspend_meanwhile() -> None:
        (found,) = claim(other)
        begin(other, found, "wait", after=MINUTE, awaited="paid")
        suspend(other, found, 60.0)

    interfere(monkeypatch, suspend_meanwhile)

    answer = reschedule(store, run_id, queue="mail")

    assert "it waits in step 'name'" in answer.refusal
    assert run_of(store, run_id).queue == "default"


@pytest.mark.stores("postgres", "pgbouncer")
def test_a_run_that_is_sent_away_under_a_reschedule_stays_with_its_engine(
    store, open_another, worker, monkeypatch
):
    run_id = enqueue_one(store, lane=SlotKind.CARRIED)
    other = open_another()
    sent = interfere(monkeypatch, lambda: hand_over(other))

    answer = reschedule(store, run_id, delay=MINUTE)

    ((message,),) = sent
    assert "it was sent to the engine that carries it" in answer.refusal
    assert take(store, message).run_id == run_id


def test_a_worker_that_registers_late_runs_what_was_rescheduled(store):
    run_id = enqueue_one(store)
    tick(store)

    reschedule(store, run_id, delay=0)
    register(store)
    tick(store)

    assert claimed_ids(store) == [run_id]

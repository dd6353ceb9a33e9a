"""A key belongs to one run while it is in force, and the same call finds that run again."""

import pytest

from duly.store.ops.operators import ResetKey
from duly.store.ops.runs import Accepted, ClaimRuns, Want
from duly.store.ops.upkeep import Prune
from tests.store.conformance.verbs import (
    ACTOR,
    DAY_SECONDS,
    LANE,
    OTHER_TASK,
    TASK,
    TASKS,
    UNKNOWN_RUN,
    WORKER,
    accept,
    cancel,
    claim_one,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_one,
    fail,
    key,
    listed_ids,
    order,
    recover,
    redrive,
    retry_later,
    retry_now,
    run_of,
    state_of,
    succeed,
    success,
    tick,
)

pytestmark = pytest.mark.pgbouncer

TTL = 100.0


def queued(store):
    return enqueue_one(store, key="k")


def waiting(store):
    return enqueue_one(store, key="k", delay_seconds=60)


def running(store):
    return enqueue_and_claim(store, key="k").run_id


def retried(store):
    found = enqueue_and_claim(store, key="k")
    retry_later(store, found, 60.0)
    return found.run_id


def succeeded(store):
    return enqueue_and_succeed(store, key="k")


def failed(store):
    return enqueue_and_fail(store, key="k")


def cancelled(store):
    run_id = enqueue_one(store, key="k")
    cancel(store, run_id)
    return run_id


EVERYWHERE = [queued, waiting, running, retried, succeeded, failed, cancelled]


@pytest.mark.parametrize("put", EVERYWHERE, ids=lambda f: f.__name__)
def test_the_same_call_finds_the_same_run_in_every_state(store, worker, put):
    run_id = put(store)

    again = accept(store, key="k")

    assert again == Accepted(run_id, new=False, conflict=False)
    assert listed_ids(store) == [run_id]


@pytest.mark.parametrize("put", [queued, running, succeeded, failed], ids=lambda f: f.__name__)
def test_a_call_with_other_arguments_and_the_same_key_is_a_conflict(store, worker, put):
    run_id = put(store)

    other = accept(store, key=key("k", fingerprint="print-2"))

    assert other == Accepted(run_id, new=False, conflict=True)
    assert listed_ids(store) == [run_id]


def test_a_conflict_writes_nothing(store, worker, tables):
    enqueue_one(store, key="k")
    before = tables.everything()

    accept(store, key=key("k", fingerprint="print-2"), tags={"customer": "17"})

    assert tables.everything() == before


def test_a_key_belongs_to_its_task(store):
    mine = accept(store, task=TASK, key="k")
    theirs = accept(store, task=OTHER_TASK, key="k")

    assert mine.new
    assert theirs.new


@pytest.mark.parametrize(
    ("one", "other"), [("k", "K"), ("k", "k "), ("e\u0301", "\u00e9"), ("straße", "strasse")]
)
def test_keys_are_equal_only_if_every_character_is_equal(store, one, other):
    assert accept(store, key=one).new
    assert accept(store, key=other).new


@pytest.mark.parametrize("text", ["x" * 255, "é" * 127, "'; DROP TABLE --", "%s %(k)s :k", "\n"])
def test_any_text_may_be_a_key(store, text):
    run_id = enqueue_one(store, key=text)

    assert accept(store, key=text) == Accepted(run_id, new=False, conflict=False)
    assert run_of(store, run_id).key == text


@pytest.mark.parametrize("end", [succeed, fail], ids=["succeeded", "failed"])
def test_a_key_is_free_when_its_time_to_live_after_the_end_has_passed(store, worker, clock, end):
    found = enqueue_and_claim(store, key=key("k", ttl_seconds=TTL))
    clock.advance(1000)
    end(store, found)

    clock.advance(TTL - 1)
    kept = accept(store, key="k")
    clock.advance(1)
    free = accept(store, key=key("k", fingerprint="print-2"))

    assert kept == Accepted(found.run_id, new=False, conflict=False)
    assert free.new
    assert not free.conflict


def test_a_key_is_in_force_while_its_run_waits(store, worker, clock):
    run_id = enqueue_one(store, key=key("k", ttl_seconds=TTL), delay_seconds=10 * TTL)

    clock.advance(5 * TTL)

    assert accept(store, key="k").run_id == run_id


def test_a_cancelled_run_keeps_its_key_for_the_time_to_live(store, clock):
    run_id = enqueue_one(store, key=key("k", ttl_seconds=TTL))
    clock.advance(1000)
    cancel(store, run_id)

    clock.advance(TTL - 1)
    kept = accept(store, key="k")
    clock.advance(1)
    free = accept(store, key="k")

    assert kept.run_id == run_id
    assert free.new


def test_a_key_without_a_time_to_live_is_kept_for_ever(store, worker, clock):
    run_id = enqueue_and_succeed(store, key=key("k", ttl_seconds=None))

    clock.advance(1000 * DAY_SECONDS)

    assert accept(store, key="k").run_id == run_id


@pytest.mark.parametrize("end", [succeed, fail], ids=["succeeded", "failed"])
def test_a_key_for_active_runs_is_free_at_their_end(store, worker, end):
    unique = key("k", active_only=True)
    found = enqueue_and_claim(store, key=unique)
    while_running = accept(store, key=unique)
    retry_now(store, found)
    while_queued = accept(store, key=unique)
    end(store, claim_one(store))

    after = accept(store, key=unique)

    assert while_running.run_id == while_queued.run_id == found.run_id
    assert after.new


def test_a_key_for_active_runs_is_free_after_a_cancel(store):
    unique = key("k", active_only=True)
    cancel(store, enqueue_one(store, key=unique))

    assert accept(store, key=unique).new


def test_a_key_that_is_taken_over_gets_the_time_to_live_of_its_new_run(store, worker, clock):
    enqueue_and_succeed(store, key=key("k", ttl_seconds=TTL))
    clock.advance(TTL)
    second = enqueue_and_claim(store, key=key("k", fingerprint="print-2", ttl_seconds=2 * TTL))

    clock.advance(10 * TTL)
    while_running = accept(store, key=key("k", fingerprint="print-2"))
    succeed(store, second)
    clock.advance(2 * TTL - 1)
    after_its_end = accept(store, key=key("k", fingerprint="print-2"))
    clock.advance(1)

    assert while_running.run_id == after_its_end.run_id == second.run_id
    assert accept(store, key="k").new


def test_a_run_is_never_pruned_before_its_key(store, worker, clock):
    run_id = enqueue_and_succeed(store, key=key("k", ttl_seconds=TTL))
    failed = enqueue_and_fail(store, key=key("f", ttl_seconds=TTL))
    for_ever = enqueue_and_succeed(store, key=key("e", ttl_seconds=None))
    enqueue_and_succeed(store, key=key("a", active_only=True))
    clock.advance(TTL - 1)

    def prune():
        return store.do(Prune(older_than=0, limit=100)).runs

    assert prune() == 1
    assert accept(store, key="k") == Accepted(run_id, new=False, conflict=False)
    assert state_of(store, failed) == "failed"
    assert list(store.audit(10)) == []
    clock.advance(1)
    assert prune() == 2
    clock.advance(1000 * DAY_SECONDS)
    assert prune() == 0
    assert listed_ids(store) == [for_ever]
    store.do(ResetKey(TASK, "e", ACTOR))
    assert prune() == 1
    assert list(store.audit(10)) == []


def test_a_pruned_key_is_free(store, worker, clock, tables):
    enqueue_and_succeed(store, key=key("k", ttl_seconds=TTL))
    clock.advance(TTL)

    store.do(Prune(older_than=0, limit=100))

    assert tables.everything()["duly_keys"] == []
    assert accept(store, key="k").new


def test_the_same_key_twice_in_one_call_makes_one_run(store):
    first, second = order(key="k"), order(key="k")

    answers = store.apply([first, second])

    assert answers == [Accepted(first.run_id), Accepted(first.run_id, new=False)]
    assert listed_ids(store) == [first.run_id]


def test_a_conflict_in_a_batch_does_not_affect_the_other_ops(store):
    taken = enqueue_one(store, key="k")
    batch = [order(key=f"key {number}") for number in range(100)]
    batch[42] = order(key=key("k", fingerprint="print-2"))

    answers = store.apply(batch)

    assert answers[42] == Accepted(taken, new=False, conflict=True)
    assert all(answer.new for place, answer in enumerate(answers) if place != 42)
    expected = {op.run_id for op in batch} - {batch[42].run_id} | {taken}
    assert set(listed_ids(store)) == expected


def test_keyed_and_plain_runs_can_be_enqueued_together(store):
    batch = [order(key="a"), order(), order(key="a"), order(delay_seconds=5), order(key="b")]

    answers = store.apply(batch)

    assert [answer.new for answer in answers] == [True, True, False, True, True]
    assert len(listed_ids(store)) == 4


def test_a_redriven_run_holds_its_key_again(store, worker, clock):
    run_id = enqueue_and_fail(store, key=key("k", ttl_seconds=TTL))
    clock.advance(TTL - 1)
    redrive(store, run_id)

    clock.advance(10 * TTL)
    while_queued = accept(store, key="k")
    tick(store)
    succeed(store, claim_one(store))
    clock.advance(TTL - 1)
    after_its_end = accept(store, key="k")
    clock.advance(1)

    assert while_queued.run_id == after_its_end.run_id == run_id
    assert accept(store, key="k").new


def test_a_redriven_run_does_not_take_its_key_from_another_run(store, worker, clock):
    old = enqueue_and_fail(store, key=key("k", ttl_seconds=TTL))
    clock.advance(TTL)
    new = enqueue_one(store, key="k")

    redrive(store, old)

    assert accept(store, key="k").run_id == new


def test_the_end_of_a_run_does_not_affect_the_key_of_another_run(store, worker, clock):
    old = enqueue_and_claim(store, key=key("k", ttl_seconds=TTL))
    store.do(ResetKey(TASK, "k", ACTOR))
    new = enqueue_one(store, key=key("k", ttl_seconds=TTL))

    succeed(store, old)
    clock.advance(2 * TTL)

    assert accept(store, key="k").run_id == new


def test_the_time_to_live_of_a_key_starts_when_the_run_of_a_dead_worker_ends(store, worker, clock):
    enqueue_and_claim(store, key=key("k", ttl_seconds=TTL), lane="thread-hold")

    recover(store)

    clock.advance(TTL - 1)
    assert not accept(store, key="k").new
    clock.advance(1)
    assert accept(store, key="k").new


def test_a_repeated_settle_does_not_keep_the_key_for_longer(store, worker, clock):
    found = enqueue_and_claim(store, key=key("k", ttl_seconds=TTL))
    succeed(store, found)
    clock.advance(TTL - 1)
    succeed(store, found)

    clock.advance(1)

    assert accept(store, key="k").new


def test_a_key_can_be_reset(store, worker):
    run_id = enqueue_one(store, key="k")

    answers = store.apply([ResetKey(TASK, "k", ACTOR), ResetKey(OTHER_TASK, "k", ACTOR)])

    again = accept(store, key=key("k", fingerprint="print-2"))
    assert answers == [True, False]
    assert again.new
    assert again.run_id != run_id
    assert state_of(store, run_id) == "queued"
    assert [(act.act, act.actor) for act in store.list_audit_entries(None, 10)] == [
        ("reset key", ACTOR)
    ]


def test_a_reset_that_names_a_run_does_not_reset_the_key_of_another_run(store, worker):
    before = enqueue_one(store, key="k")
    store.do(ResetKey(TASK, "k", ACTOR, before))
    after = enqueue_one(store, key="k")

    answers = store.apply([ResetKey(TASK, "k", ACTOR, before)])

    assert answers == [False]
    assert accept(store, key="k").run_id == after


def test_a_settle_may_state_that_its_run_has_no_key(store, worker):
    found = enqueue_and_claim(store)

    store.do(success(found)._replace(keyed=False))

    assert state_of(store, found.run_id) == "succeeded"


def test_an_enqueue_after_a_settle_in_one_call_gets_the_key_that_the_settle_frees(store, worker):
    unique = key("k", active_only=True)
    found = enqueue_and_claim(store, key=unique)
    following = order(key=unique)

    answers = store.apply(
        [success(found), following, ClaimRuns(WORKER, (Want(None, LANE, 1),), TASKS)]
    )

    assert answers[1] == Accepted(following.run_id)
    assert [claim.run_id for claim in answers[2]] == [following.run_id]


def test_resetting_an_unknown_key_is_not_recorded(store):
    store.do(ResetKey(TASK, UNKNOWN_RUN, ACTOR))

    assert store.list_audit_entries(None, 10) == []

"""An operator can leave a final state: same run, next generation, growing claim numbers."""

import pytest

from duly.core.concurrency_limits import limited_lane
from duly.store.ops.operators import DiscardDead, ResetKey, RetriedRun
from duly.store.ops.runs import Settled
from duly.store.ops.upkeep import Prune
from tests.store.conformance.verbs import (
    ACTOR,
    DAY_SECONDS,
    LANE,
    SECOND,
    TASK,
    UNKNOWN_RUN,
    accept,
    at_once,
    cancel,
    claim,
    claim_one,
    claimed_ids,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_one,
    fail,
    key,
    listed_ids,
    outcomes_of,
    redrive,
    retry_now,
    run_of,
    state_of,
    succeed,
    tick,
)


def reset_key(store, text):
    store.do(ResetKey(TASK, text, ACTOR))


def cancelled(store):
    run_id = enqueue_one(store)
    cancel(store, run_id)
    return run_id


@pytest.mark.parametrize("put", [enqueue_and_succeed, enqueue_and_fail, cancelled])
def test_a_final_run_is_queued_again_in_its_next_generation(store, worker, clock, put):
    run_id = put(store)
    created_at = run_of(store, run_id).created_at
    clock.advance(60)

    answer = redrive(store, run_id)

    run = run_of(store, run_id)
    assert answer == RetriedRun(done=True, state="queued")
    assert (run.state, run.cause, run.generation) == ("queued", None, 2)
    assert (run.created_at, run.due_at, run.finished_at) == (created_at, clock.now(), None)
    assert (run.retries_used, run.crashes) == (0, 0)
    assert (run.error, run.result) == (None, None)
    assert listed_ids(store) == [run_id]


def test_the_claim_number_still_grows_after_a_redrive(store, worker):
    first = enqueue_and_claim(store)
    retry_now(store, first)
    fail(store, claim_one(store))
    redrive(store, first.run_id)
    tick(store)

    third = claim_one(store)

    assert (third.run_id, third.claim_number, third.generation) == (first.run_id, 3, 2)
    assert third.retries_used == 0
    assert succeed(store, third) is Settled.DONE


def test_the_attempts_of_earlier_generations_are_kept(store, worker):
    first = enqueue_and_claim(store)
    retry_now(store, first)
    fail(store, claim_one(store))
    redrive(store, first.run_id)
    tick(store)
    succeed(store, claim_one(store))

    records = store.list_attempts(first.run_id)

    assert [(r.claim_number, r.outcome) for r in records] == [
        (1, "raised"),
        (2, "raised"),
        (3, "returned"),
    ]
    assert [r.generation for r in records] == [1, 1, 2]
    assert [r.attempt for r in records] == [1, 2, 1]
    assert records[1].error == "ValueError: boom"


def test_a_run_that_never_ran_has_no_attempt_after_its_redrive(store, worker):
    run_id = cancelled(store)

    redrive(store, run_id)

    assert store.list_attempts(run_id) == []
    assert run_of(store, run_id).attempt == 1


def test_a_redriven_run_keeps_the_options_of_its_enqueue(store, worker):
    run_id = enqueue_and_fail(store, queue="mail", priority=4, tags={"customer": "17"}, key="k")

    redrive(store, run_id)

    run = run_of(store, run_id)
    assert (run.queue, run.priority, run.key) == ("mail", 4, "k")
    assert run.tags is not None
    assert listed_ids(store, tag=("customer", "17")) == [run_id]


def test_a_redriven_run_keeps_its_limit_whatever_the_name_of_its_task(store, worker):
    lane = limited_lane(LANE, "mail:handed_over", "handed-in")
    run_id = enqueue_one(store, lane=lane)
    cancel(store, run_id)

    redrive(store, run_id)

    assert run_of(store, run_id).lane == lane


def test_a_redriven_run_does_not_expire_again(store, worker, clock):
    run_id = enqueue_one(store, expires_seconds=10)
    clock.advance(10)
    tick(store)

    redrive(store, run_id)
    tick(store)

    assert claimed_ids(store) == [run_id]


def test_a_redrive_may_have_a_delay(store, worker, clock):
    run_id = enqueue_and_fail(store)

    redrive(store, run_id, delay=60 * SECOND)

    assert tick(store).next_due_in == 60 * SECOND
    assert claim(store) == []
    clock.advance(60)
    tick(store)
    assert claimed_ids(store) == [run_id]


def test_a_redrive_may_replace_the_arguments_and_the_lane(store, worker):
    run_id = enqueue_and_fail(store)

    redrive(store, run_id, arguments='[[],{"to":"bob"}]', lane="process")
    tick(store)

    assert claim_one(store, lane="process").arguments == '[[],{"to":"bob"}]'


def test_the_actor_of_a_redrive_is_recorded(store, worker, clock):
    run_id = enqueue_and_fail(store)
    redrive(store, run_id, reason="fixed")
    tick(store)
    fail(store, claim_one(store))
    clock.advance(1)
    redrive(store, run_id, arguments="[[],{}]")

    acts = store.list_audit_entries(run_id, 10)

    assert [(act.act, act.actor, act.reason) for act in acts] == [
        ("edit and redrive", ACTOR, ""),
        ("redrive", ACTOR, "fixed"),
    ]


def test_a_live_run_is_not_redriven(store, worker, tables):
    queued = enqueue_one(store, delay_seconds=60)
    running = enqueue_and_claim(store).run_id
    before = tables.everything()

    assert redrive(store, queued) == RetriedRun(done=False, state="queued")
    assert redrive(store, running) == RetriedRun(done=False, state="running")
    assert tables.everything() == before


def test_an_unknown_run_is_not_redriven(store, tables):
    before = tables.everything()

    assert redrive(store, UNKNOWN_RUN) == RetriedRun(done=False, state=None)
    assert tables.everything() == before


def test_a_redrive_may_be_restricted_to_states(store, worker):
    good, bad = enqueue_and_succeed(store), enqueue_and_fail(store)
    dead = ("failed", "interrupted")

    answers = [redrive(store, run_id, states=dead) for run_id in (good, bad)]

    assert answers == [
        RetriedRun(done=False, state="succeeded"),
        RetriedRun(done=True, state="queued"),
    ]


def test_a_redrive_may_be_restricted_to_one_generation(store, worker):
    run_id = enqueue_and_fail(store)
    redrive(store, run_id, generation=1)
    tick(store)
    fail(store, claim_one(store))

    late = redrive(store, run_id, generation=1)

    assert late == RetriedRun(done=False, state="failed")
    assert run_of(store, run_id).generation == 2


def test_two_redrives_at_once_redrive_once(store, worker, open_another):
    run_id = enqueue_and_fail(store)
    stores = [store, store, open_another(), open_another()]

    answers = at_once(*(lambda s=s: redrive(s, run_id, generation=1) for s in stores))

    assert sorted(answer.done for answer in answers) == [False, False, False, True]
    assert run_of(store, run_id).generation == 2
    assert len(store.list_audit_entries(run_id, 10)) == 1
    assert outcomes_of(store, run_id) == [(1, "raised")]


def test_a_dead_letter_is_discarded(store, worker, clock):
    run_id = enqueue_and_fail(store)

    answer = store.do(DiscardDead(run_id, ACTOR, "known"))

    run = run_of(store, run_id)
    assert answer.done
    assert (run.state, run.cause) == ("cancelled", "discarded")
    assert outcomes_of(store, run_id) == [(1, "raised")]
    assert [(act.act, act.reason) for act in store.list_audit_entries(run_id, 10)] == [
        ("discard", "known")
    ]


def test_only_dead_letters_are_discarded(store, worker, tables):
    ids = [enqueue_and_succeed(store), enqueue_one(store, delay_seconds=60), cancelled(store)]
    before = tables.everything()

    answers = store.apply([DiscardDead(run_id, ACTOR, "") for run_id in [*ids, UNKNOWN_RUN]])

    assert answers == [
        RetriedRun(done=False, state="succeeded"),
        RetriedRun(done=False, state="queued"),
        RetriedRun(done=False, state="cancelled"),
        RetriedRun(done=False, state=None),
    ]
    assert tables.everything() == before


def test_a_discarded_run_can_still_be_redriven(store, worker):
    run_id = enqueue_and_fail(store)
    store.do(DiscardDead(run_id, ACTOR, ""))

    assert redrive(store, run_id).done
    assert state_of(store, run_id) == "queued"


@pytest.mark.parametrize("active_only", [True, False], ids=["active", "run"])
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "queued"])
def test_a_run_is_not_redriven_while_a_live_run_has_its_key(
    store, worker, tables, active_only, is_running
):
    k = key("k", active_only=active_only)
    first = enqueue_and_fail(store, key=k)
    reset_key(store, "k")
    second = enqueue_one(store, key=k)
    if is_running:
        claim_one(store)
    before = tables.everything()

    answer = redrive(store, first)

    state = "running" if is_running else "queued"
    assert answer == RetriedRun(done=False, state=state, held_by=second)
    assert state_of(store, first) == "failed"
    assert tables.everything() == before


def test_a_redriven_run_takes_the_key_of_a_run_that_has_ended(store, worker):
    first = enqueue_and_fail(store, key=key("k", active_only=True))
    enqueue_and_fail(store, key=key("k", active_only=True))

    assert redrive(store, first).done
    again = accept(store, key=key("k", active_only=True))

    assert again == (first, False, False)


@pytest.mark.parametrize("active_only", [True, False], ids=["active", "run"])
def test_a_redriven_run_holds_a_key_that_was_reset(store, worker, clock, active_only):
    k = key("k", active_only=active_only)
    first = enqueue_and_fail(store, key=k)
    clock.advance(2 * DAY_SECONDS)
    store.do(Prune(30 * DAY_SECONDS * SECOND, 100))

    assert redrive(store, first).done
    while_it_lives = accept(store, key=k)
    tick(store)
    succeed(store, claim_one(store))
    after_its_end = accept(store, key=k)

    assert while_it_lives == (first, False, False)
    assert after_its_end.new


def test_an_enqueue_and_a_redrive_at_once_leave_one_live_run_of_a_key(store, worker, open_another):
    other = open_another()
    for number in range(5):
        k = key(f"k{number}", active_only=True)
        first = enqueue_and_fail(store, key=k)

        redriven, accepted = at_once(
            lambda first=first: redrive(store, first), lambda k=k: accept(other, key=k)
        )

        assert redriven.done == (accepted.run_id == first)
        assert (redriven.held_by or first) == accepted.run_id
        cancel(store, accepted.run_id)

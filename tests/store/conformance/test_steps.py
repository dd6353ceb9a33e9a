"""Steps and waits are fenced and recorded once, and no wake-up between them is lost."""

import json

import pytest

from duly.core.states import State
from duly.core.verdict import Finish, Requeue
from duly.store.ops.operators import RetriedRun, RetryRun
from duly.store.ops.runs import Settle, Settled
from duly.store.ops.steps import (
    BeginStep,
    EndStep,
    ForgetStep,
    RecheckWaits,
    ResolvedStep,
    ResolveStep,
    SendEvent,
    WakeRuns,
)
from tests.store.conformance.verbs import (
    HOUR_SECONDS,
    SECOND,
    cancel,
    claim_one,
    claimed_ids,
    enqueue_and_claim,
    enqueue_one,
    key,
    redrive,
    retry_later,
    settle,
    settle_op,
    succeed,
    tick,
)

pytestmark = pytest.mark.pgbouncer


def begin(store, claim, kind="step", **options):
    """Record that a run has begun a step."""
    return store.do(BeginStep(claim.run_id, claim.claim_number, "name", kind, **options))


def end(store, claim, result=None):
    """Record the result of a step."""
    return store.do(EndStep(claim.run_id, claim.claim_number, "name", result))


def suspend(store, claim, seconds=HOUR_SECONDS):
    """Suspend a run until its step has what it waits for."""
    verdict = Requeue(seconds, claim.attempt, claim.retries_used, claim.crashes, claim.lane)
    return settle(store, settle_op(claim, "suspended", verdict._replace(awaits="name")))


def steps(store, run_id):
    """Return the recorded steps."""
    return [(step.name, step.kind, step.done, step.result) for step in store.list_steps(run_id)]


@pytest.fixture
def held(store, worker):
    """A run that a worker holds."""
    return enqueue_and_claim(store)


def test_a_step_is_recorded_once(store, held):
    assert end(store, held, "1")
    assert end(store, held, "2")

    assert steps(store, held.run_id) == [("name", "step", True, "1")]


def test_a_step_that_has_begun_can_be_ended_or_forgotten(store, held):
    assert begin(store, held).done is False
    assert store.apply([ForgetStep(held.run_id, held.claim_number, "name")]) == [True]
    assert steps(store, held.run_id) == []

    begin(store, held)
    end(store, held, "7")

    assert begin(store, held).result == "7"


@pytest.mark.parametrize("verb", [begin, end])
def test_a_lost_claim_records_nothing(store, held, verb):
    late = held._replace(claim_number=held.claim_number + 1)

    assert not verb(store, late)
    assert not store.do(ForgetStep(late.run_id, late.claim_number, "name"))
    assert steps(store, held.run_id) == []


def test_a_sleep_ends_when_its_time_has_passed(store, held, clock):
    assert not begin(store, held, "sleep", after=10 * SECOND).done
    suspend(store, held, 10.0)
    clock.advance(11)
    tick(store)

    again = claim_one(store)

    assert begin(store, again, "sleep", after=10 * SECOND).done


def test_a_suspension_costs_no_attempt(store, held, clock):
    begin(store, held, "sleep", after=SECOND)
    suspend(store, held, 1.0)
    clock.advance(2)
    tick(store)

    assert claim_one(store).attempt == 1


class TestEvents:
    """An event may be sent before, between or after the two writes of the run that waits."""

    def test_an_event_before_the_wait_is_found(self, store, held):
        assert store.apply([SendEvent("paid", "7")]) == [True]

        found = begin(store, held, "wait", awaited="paid")

        assert (found.done, found.result) == (True, "7")

    def test_an_event_between_the_wait_and_the_suspension_queues_the_run(self, store, held):
        assert not begin(store, held, "wait", awaited="paid").done
        store.do(SendEvent("paid", "7"))

        assert suspend(store, held) is Settled.DONE

        assert claimed_ids(store) == [held.run_id]

    def test_an_event_after_the_suspension_queues_the_run(self, store, held):
        begin(store, held, "wait", awaited="paid")
        suspend(store, held)
        assert claimed_ids(store) == []

        store.do(SendEvent("paid", "7"))
        tick(store)

        assert claimed_ids(store) == [held.run_id]

    def test_another_event_does_not_wake_the_run(self, store, held):
        begin(store, held, "wait", awaited="paid")
        suspend(store, held)

        store.do(SendEvent("shipped", "7"))
        tick(store)

        assert claimed_ids(store) == []

    def test_the_first_value_of_an_event_is_kept(self, store, held):
        assert store.apply([SendEvent("paid", "1")]) == [True]
        assert store.apply([SendEvent("paid", "2")]) == [False]

        assert begin(store, held, "wait", awaited="paid").result == "1"

    def test_a_wait_that_reached_its_timeout_has_no_result(self, store, held, clock):
        begin(store, held, "wait", awaited="paid", after=SECOND)
        suspend(store, held, 1.0)
        clock.advance(2)
        tick(store)
        again = claim_one(store)

        found = begin(store, again, "wait", awaited="paid", after=SECOND)

        assert (found.done, found.result) == (True, None)

    def test_a_recheck_wakes_a_run_whose_wake_up_was_lost(self, store, held, tables):
        begin(store, held, "wait", awaited="paid")
        suspend(store, held)
        now = "0" if "sqlite" in store.url else "now()"
        tables.execute(f"INSERT INTO duly_events VALUES ('paid', '7', {now})")  # noqa: S608

        found = store.do(RecheckWaits("", 100))
        tick(store)

        assert (found.roused, found.after) == (1, "")
        assert claimed_ids(store) == [held.run_id]
        assert store.peek().awaits


@pytest.mark.parametrize("kind", ["wait", "gather"])
def test_a_run_that_failed_with_an_open_wait_is_retried_after_its_delay(store, held, kind):
    begin(store, held, kind, awaited="[]" if kind == "gather" else "paid")
    retry_later(store, held, HOUR_SECONDS)
    due_at = store.get_run(held.run_id).due_at

    store.do(SendEvent("paid", "7"))
    store.do(WakeRuns((held.run_id,)))
    store.do(RecheckWaits("", 100))
    tick(store)

    assert store.get_run(held.run_id).due_at == due_at


class TestChildren:
    """A run that waits for others continues when the last of them has ended, in any way."""

    def wait(self, store, held):
        """Wait for two runs."""
        children = [enqueue_one(store), enqueue_one(store)]
        begin(store, held, "gather", awaited=json.dumps(children))
        return children

    def test_a_run_continues_when_all_its_children_have_ended(self, store, held):
        children = self.wait(store, held)
        suspend(store, held)
        store.do(WakeRuns((held.run_id,)))
        assert set(claimed_ids(store, limit=1)) <= set(children)

        self.finish(store, children)
        store.do(WakeRuns((held.run_id,)))
        tick(store)

        assert claimed_ids(store) == [held.run_id]

    def test_children_that_end_before_the_suspension_queue_the_run(self, store, held):
        children = self.wait(store, held)
        self.finish(store, children)

        suspend(store, held)

        assert claimed_ids(store) == [held.run_id]

    def test_a_recheck_wakes_a_run_whose_children_ended_without_a_wake_up(self, store, held):
        children = self.wait(store, held)
        suspend(store, held)
        for child in children:
            cancel(store, child)

        found = store.do(RecheckWaits("", 1))
        store.do(RecheckWaits(found.after, 1))
        tick(store)

        assert claimed_ids(store) == [held.run_id]

    def finish(self, store, children):
        """End the children, whether they are queued or running."""
        for child in children:
            cancel(store, child)
            run = store.get_run(child)
            if run.state == "running":
                verdict = Finish(State.CANCELLED, "requested")
                store.do(Settle(child, run.claim_number, "cancelled", verdict, 0))


def test_a_redrive_keeps_the_steps_and_counts_fresh_effect_keys(store, held):
    end(store, held, "1")
    succeed(store, held)
    redrive(store, held.run_id)
    succeed(store, claim_redriven(store))
    redrive(store, held.run_id, fresh_effects=True)

    assert ("name", "step", True, "1") in steps(store, held.run_id)
    assert ("", "epoch", True, "1") in steps(store, held.run_id)


def nest(store, claim, *names, op=EndStep):
    """Record nested steps, the outermost first."""
    pairs = list(zip(names, (None, *names), strict=False))
    for name, outer in reversed(pairs) if op is EndStep else pairs:
        kind = None if op is EndStep else "step"
        store.do(op(claim.run_id, claim.claim_number, name, kind, outer))


def test_a_redrive_from_a_step_forgets_the_steps_inside_it(store, held, clock):
    for names in (("before",), ("outer", "inner", "inmost"), ("after",)):
        nest(store, held, *names)
        clock.advance(SECOND)
    succeed(store, held)

    redrive(store, held.run_id, from_step="outer")

    assert [name for name, *_ in steps(store, held.run_id)] == ["before"]


def test_a_redrive_from_a_step_forgets_all_later_steps(store, held, clock):
    for name in ("reserve", "charge", "ship"):
        nest(store, held, name)
        clock.advance(SECOND)
    succeed(store, held)

    redrive(store, held.run_id, from_step="charge")

    assert [name for name, *_ in steps(store, held.run_id)] == ["reserve"]


def test_a_redrive_from_an_inner_step_keeps_earlier_steps_of_the_same_outer_step(
    store, held, clock
):
    for name, outer in (("first", "outer"), ("second", "outer"), ("outer", None)):
        store.do(EndStep(held.run_id, held.claim_number, name, None, outer))
        clock.advance(SECOND)
    succeed(store, held)

    redrive(store, held.run_id, from_step="second")

    assert [name for name, *_ in steps(store, held.run_id)] == ["first"]


def test_a_redrive_from_an_inner_step_forgets_an_outer_step_that_began_earlier(store, held, clock):
    place = (held.run_id, held.claim_number)
    begins = BeginStep(*place, "outer", "step")
    ends = [EndStep(*place, name, None, "outer") for name in ("first", "second")]
    for op in (begins, *ends, EndStep(*place, "outer", None)):
        store.do(op)
        clock.advance(SECOND)
    succeed(store, held)

    redrive(store, held.run_id, from_step="second")

    assert [name for name, *_ in steps(store, held.run_id)] == ["first"]


@pytest.mark.parametrize(("from_step", "kept"), [("outer", {"night"}), ("night", set())])
def test_a_redrive_keeps_an_earlier_wait_because_its_outer_step_is_not_recorded(
    store, held, clock, from_step, kept
):
    place = (held.run_id, held.claim_number)
    for op in (BeginStep(*place, "night", "sleep", after=0), EndStep(*place, "outer", None)):
        store.do(op)
        clock.advance(SECOND)
    succeed(store, held)

    redrive(store, held.run_id, from_step=from_step)

    assert {name for name, *_ in steps(store, held.run_id)} == kept


def test_a_redrive_from_an_inner_step_is_refused_while_its_outer_step_is_unresolved(
    store, held, clock
):
    nest(store, held, "outer", op=BeginStep)
    clock.advance(SECOND)
    store.do(EndStep(held.run_id, held.claim_number, "inner", None, "outer"))
    settle(store, settle_op(held, "vanished", Finish(State.INTERRUPTED, "step")))

    refused = redrive(store, held.run_id, from_step="inner")

    assert refused == RetriedRun(done=False, state="interrupted", unresolved=("outer",))
    known = {(name, done) for name, _, done, _ in steps(store, held.run_id)}
    assert known == {("outer", False), ("inner", True)}


@pytest.mark.parametrize(
    ("verdict", "is_refused"),
    [
        (Finish(State.INTERRUPTED, "crashed"), True),
        (Finish(State.FAILED, "timed_out"), True),
        (Finish(State.CANCELLED, "requested"), True),
        (Finish(State.SUCCEEDED, None), False),
    ],
)
def test_a_run_that_ended_in_a_step_is_not_redriven_before_the_step_is_resolved(
    store, held, verdict, is_refused
):
    nest(store, held, "outer", "inner", op=BeginStep)
    outcome = "vanished" if is_refused else "returned"
    settle(store, settle_op(held, outcome, verdict))
    before = store.get_run(held.run_id), store.list_attempts(held.run_id)

    answer = redrive(store, held.run_id)

    assert answer.done is not is_refused
    if is_refused:
        assert (answer.state, answer.unresolved) == (verdict.state, ("outer",))
        assert (store.get_run(held.run_id), store.list_attempts(held.run_id)) == before
        assert list(store.list_audit_entries(held.run_id, 10)) == []
        op = ResolveStep(RetryRun(held.run_id, "me"), "outer", is_done=False)
        assert store.do(op).retried.done
    assert store.get_run(held.run_id).state == "queued"


def test_a_refused_redrive_does_not_affect_others_in_its_transaction(store, held):
    other = enqueue_and_claim(store)
    nest(store, held, "charge", op=BeginStep)
    settle(store, settle_op(held, "vanished", Finish(State.INTERRUPTED, "crashed")))
    succeed(store, other)

    ids = held.run_id, other.run_id, held.run_id
    answers = store.apply([RetryRun(run_id, "me", fresh_effects=True) for run_id in ids])

    assert [answer.done for answer in answers] == [False, True, False]
    assert [store.get_run(run_id).state for run_id in ids[:2]] == ["interrupted", "queued"]
    assert [name for name, *_ in steps(store, held.run_id)] == ["charge"], "no epoch is counted"


def test_a_redrive_from_the_unresolved_step_itself_begins_it_again(store, held):
    nest(store, held, "charge", op=BeginStep)
    settle(store, settle_op(held, "vanished", Finish(State.INTERRUPTED, "crashed")))

    assert redrive(store, held.run_id, from_step="charge").done
    assert steps(store, held.run_id) == []


@pytest.mark.parametrize("is_done", [True, False])
def test_a_step_is_resolved_with_all_steps_that_had_begun_inside_it(store, held, is_done):
    nest(store, held, "outer", "inner", "inmost", op=BeginStep)
    nest(store, held, "other", op=BeginStep)
    settle(store, settle_op(held, "vanished", Finish(State.INTERRUPTED, "step")))

    op = ResolveStep(RetryRun(held.run_id, "me"), "outer", is_done=is_done)
    answer = store.do(op)

    assert sorted(answer.steps) == ["inmost", "inner", "outer"]
    assert answer.retried.unresolved == ("other",)
    found = {name for name, _, done, _ in steps(store, held.run_id) if not done}
    assert found == {"other"}
    assert len(steps(store, held.run_id)) == (4 if is_done else 1)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_step_is_not_resolved_if_its_run_cannot_be_queued_again(store, worker, tables, is_done):
    held = enqueue_and_claim(store, key=key("k", active_only=True))
    nest(store, held, "charge", op=BeginStep)
    settle(store, settle_op(held, "vanished", Finish(State.INTERRUPTED, "step")))
    other = enqueue_one(store, key=key("k", active_only=True))
    op = ResolveStep(RetryRun(held.run_id, "me"), "charge", is_done=is_done)
    before = tables.everything()

    refused = store.do(op)

    assert refused.steps == ()
    assert (refused.retried.done, refused.retried.held_by) == (False, other)
    assert tables.everything() == before
    cancel(store, other)
    answer = store.do(op)
    assert answer.steps == ("charge",)
    assert answer.retried.done
    assert store.get_run(held.run_id).state == "queued"


def test_a_step_is_resolved_once(store, held):
    nest(store, held, "charge", op=BeginStep)
    settle(store, settle_op(held, "vanished", Finish(State.INTERRUPTED, "step")))
    op = ResolveStep(RetryRun(held.run_id, "me", generation=1), "charge", is_done=True)

    first, second = store.apply([op, op._replace(is_done=False)])

    assert (first.steps, first.retried.done) == (("charge",), True)
    assert second == ResolvedStep((), RetriedRun(done=False, state="queued"))
    assert [step[2] for step in steps(store, held.run_id)] == [True]


def claim_redriven(store):
    """Claim the run that a redrive has queued."""
    tick(store)
    return claim_one(store)

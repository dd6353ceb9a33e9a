"""Ends of runs are counted as they happen, and rolling the counts up does not change the sums."""

from collections import Counter

import pytest

from duly.core.outcome import ErrorText
from duly.core.states import State
from duly.core.verdict import Finish, Requeue
from duly.store.ops.operators import DiscardDead, RetryRun
from duly.store.ops.upkeep import RollUpCounts
from duly.store.reads import RunFilter
from tests.store.conformance.verbs import (
    ACTOR,
    OTHER_TASK,
    SECOND,
    TASK,
    another_try,
    cancel,
    claim,
    claim_one,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_many,
    enqueue_one,
    fail,
    hand_back,
    redrive,
    retry_now,
    settle,
    settle_op,
    succeed,
    success,
    tick,
)

MINUTE = 60 * SECOND


def counted(store):
    """Return the numbers of runs that are counted, by task and state."""
    found = Counter()
    for row in store.count_ends_of_tasks(0):
        found[row.task, row.state] += row.runs
    return dict(found)


def test_a_run_is_counted_when_it_ends_and_not_before(store, worker):
    held = enqueue_and_claim(store, task=OTHER_TASK)
    assert counted(store) == {}

    fail(store, held)

    assert counted(store) == {(OTHER_TASK, "failed"): 1}


def test_runs_that_end_together_are_counted_together(store, worker):
    enqueue_many(store, 3)

    store.apply([success(claimed) for claimed in claim(store, limit=3)])

    assert counted(store) == {(TASK, "succeeded"): 3}


def test_an_end_that_is_settled_twice_is_counted_once(store, worker):
    held = enqueue_and_claim(store)
    succeed(store, held)

    succeed(store, held)

    assert counted(store) == {(TASK, "succeeded"): 1}


def test_a_roll_up_changes_no_sum(store, worker, clock):
    for _ in range(3):
        enqueue_and_succeed(store)
        clock.advance(seconds=40)
    before = counted(store)
    end = store.count_ends(0, 1)[-1].at

    for days in (0, 1, 30):
        clock.advance(seconds=days * 86_400 + 1)
        store.do(RollUpCounts(100))
        assert counted(store) == before

    assert store.count_ends(end - 3600 * SECOND, MINUTE) == [], "no end is as recent as that"


def test_rolled_up_counts_take_one_row_of_each_kind(store, worker, clock):
    for _ in range(2):
        for _ in range(4):
            enqueue_and_succeed(store)
            clock.advance(seconds=1)
            # PostgreSQL also rolls up the counts of accepted runs, with the sum of before.
            assert store.do(RollUpCounts(100)) in {1, 2}
        clock.advance(seconds=30 * 86_400)

    first, second = (store.do(RollUpCounts(100)) for _ in range(2))

    assert first <= 2, "one row for each hour with ends of runs"
    assert second == 0
    assert counted(store) == {(TASK, "succeeded"): 8}


def test_a_roll_up_that_reached_its_limit_has_more_to_do(store, worker, clock):
    for _ in range(3):
        enqueue_and_succeed(store)
    clock.advance(seconds=1)

    first, second, third = (store.do(RollUpCounts(2)) for _ in range(3))

    assert (first, third) == (2, 0)
    assert second in {1, 2}  # As in the test above.
    assert counted(store) == {(TASK, "succeeded"): 3}


def test_counts_of_the_last_two_hours_are_kept_by_the_minute(store, worker, clock):
    enqueue_and_succeed(store)
    clock.advance(seconds=120)
    enqueue_and_succeed(store)

    store.do(RollUpCounts(100))

    minutes = store.count_ends(0, MINUTE)
    assert [row.runs for row in minutes] == [1, 1]
    assert minutes[1].at - minutes[0].at == 2 * MINUTE


def test_durations_and_waiting_times_of_runs_are_known_within_bounds(store, worker, clock):
    enqueue_one(store)
    clock.advance(seconds=3)
    held = claim_one(store)

    store.do(success(held)._replace(elapsed=20_000))

    (ends,) = store.count_ends_of_tasks(0)
    assert (ends.took, ends.elapsed) == (25, 20_000)
    assert ends.waited in {2500, 5000}
    assert ends.delay >= 2_900_000


def test_a_search_reads_a_bounded_number_of_runs_and_returns_how_far_it_reached(store):
    ids = enqueue_many(store, 4, task=OTHER_TASK) + enqueue_many(store, 3)
    which = RunFilter(task=OTHER_TASK, scan=5, limit=10)

    assert [run.id for run in store.list_runs(which)] == ids[3:1:-1]
    assert store.reach_of(which) == ids[2]
    assert store.reach_of(which._replace(before=ids[2])) is None


@pytest.mark.parametrize(
    "which",
    [
        RunFilter(queue="nobody", scan=2),
        RunFilter(states=("queued",), queue="nobody", scan=2),
        RunFilter(tag=("color", "red"), queue="nobody", scan=2),
    ],
    ids=["all", "live", "tagged"],
)
def test_a_search_ends_where_all_further_runs_are_too_old(store, which):
    ids = enqueue_many(store, 5, tags='{"color": "red"}')
    (newest,) = store.list_runs(RunFilter(limit=1))

    soon, later = (newest.created_at + wait * SECOND for wait in (30, 90))

    assert store.reach_of(which) == ids[3]
    assert store.reach_of(which._replace(since=soon)) == ids[3], "clocks may differ"
    assert store.reach_of(which._replace(since=later)) is None


def test_live_runs_are_found_among_any_number_of_newer_ended_runs(store, worker):
    waiting = enqueue_one(store, delay_seconds=600)
    for _ in range(3):
        enqueue_and_succeed(store)

    found = store.list_runs(RunFilter(states=("queued",), scan=2))

    assert [run.id for run in found] == [waiting]


def test_a_search_for_dead_letters_reads_a_bounded_number_of_them_and_skips_other_runs(
    store, worker
):
    ids = [enqueue_and_fail(store) for _ in range(4)]
    enqueue_and_succeed(store)
    which = RunFilter(states=("failed",), queue="nobody", scan=3)

    assert store.list_runs(which) == []
    assert store.reach_of(which) == ids[1]
    assert store.reach_of(which._replace(before=ids[1])) is None
    found = store.list_runs(which._replace(queue=None, limit=2))
    assert [run.id for run in found] == ids[:1:-1]


def test_all_groups_of_dead_letters_are_found(store, worker):
    for task in (TASK, OTHER_TASK):
        for print_ in ("one", "two", ""):
            enqueue_one(store, task=task)
            error = ErrorText("ValueError", "boom", "Traceback", print_)
            fail(store, claim_one(store), error)

    groups = store.list_dead_groups(RunFilter())

    for group in groups:
        which = RunFilter(("failed",), group.task, fingerprint=group.fingerprint)
        assert [run.id for run in store.list_runs(which)] == [group.sample_id]
    assert sorted((group.task, group.fingerprint) for group in groups) == sorted(
        (task, print_) for task in (TASK, OTHER_TASK) for print_ in ("", "one", "two")
    )


def test_acts_are_listed_page_by_page(store):
    runs = enqueue_many(store, 3)
    for run in runs:
        cancel(store, run)

    first = store.list_audit_entries(None, 2)
    rest = store.list_audit_entries(None, 2, first[-1].number)

    assert [act.subject for act in first + rest] == runs[::-1]


def test_a_redrive_from_a_step_is_listed_with_its_step(store, worker):
    run = enqueue_and_fail(store)

    store.do(RetryRun(run, ACTOR, from_step="second"))

    assert store.list_audit_entries(run, 1)[0].act == "redrive from step second"


def test_an_attempt_that_is_followed_by_another_is_counted_as_a_retry(store, worker, clock):
    held = enqueue_and_claim(store)
    retry_now(store, held)
    held = claim_one(store)
    clock.advance(seconds=2)
    retry_now(store, held)

    assert counted(store) == {}
    assert sum(row.runs for row in store.count_retries_of_tasks(0)) == 2
    assert {(row.task, row.state) for row in store.count_retries_of_tasks(0)} == {(TASK, "retried")}
    assert sum(row.runs for row in store.count_retries(0, MINUTE)) == 2
    clock.advance(seconds=61)
    store.do(RollUpCounts(100))
    assert sum(row.runs for row in store.count_retries_of_tasks(0)) == 2


def test_a_hand_back_and_a_sleep_are_no_retries(store, worker):
    held = enqueue_and_claim(store)
    sleep = Requeue(0.0, held.attempt, held.retries_used, held.crashes, held.lane)
    settle(store, settle_op(held, "suspended", sleep))
    hand_back(store, claim_one(store))

    assert store.count_retries_of_tasks(0) == []


def test_a_run_lasts_from_its_first_start_to_its_end(store, worker, clock):
    held = enqueue_and_claim(store)
    clock.advance(seconds=1)
    settle(store, another_try(held)._replace(elapsed=1 * SECOND))
    clock.advance(seconds=10)
    held = claim_one(store)
    clock.advance(seconds=1)

    settle(store, success(held)._replace(elapsed=1 * SECOND))

    (ends,) = store.count_ends_of_tasks(0)
    assert ends.elapsed == 1 * SECOND
    assert 12 * SECOND <= ends.lasted < 13 * SECOND
    assert ends.took == 30_000
    store.do(RetryRun(held.run_id, ACTOR))
    tick(store)
    again = claim_one(store)
    settle(store, success(again)._replace(elapsed=1 * SECOND))
    last = min(store.count_ends_of_tasks(0), key=lambda row: row.took)
    assert last.lasted == 1 * SECOND, "another generation starts again"


def counted_at_every_end(store):
    """Return the numbers of ended runs by state, including the ends that operators took back."""
    found = Counter()
    for row in store.count_every_end_of_tasks(0):
        found[row.state] += row.runs
    return found


def test_a_run_that_an_operator_retried_counts_in_its_present_state(store, worker, clock):
    run = enqueue_and_fail(store)
    enqueue_and_succeed(store)

    redrive(store, run)

    assert counted(store) == {(TASK, "succeeded"): 1}, "the other run is still queued"
    tick(store)
    succeed(store, claim_one(store))
    assert counted(store) == {(TASK, "succeeded"): 2}
    assert {row.state: row.runs for row in store.count_ends(0, 86_400 * SECOND)} == {"succeeded": 2}
    for days in (0, 1, 30):
        clock.advance(seconds=days * 86_400 + 1)
        store.do(RollUpCounts(100))
        assert counted(store) == {(TASK, "succeeded"): 2}
    assert counted_at_every_end(store) == {"failed": 1, "succeeded": 2}, "monitors count every end"


def test_a_run_that_failed_again_after_a_retry_counts_as_one_failure(store, worker):
    run = enqueue_and_fail(store)
    for _ in range(2):
        redrive(store, run)
        tick(store)
        fail(store, claim_one(store))

    assert counted(store) == {(TASK, "failed"): 1}


def test_a_discarded_dead_letter_counts_as_cancelled(store, worker):
    run = enqueue_and_fail(store)

    store.do(DiscardDead(run, ACTOR, "known"))

    assert counted(store) == {(TASK, "cancelled"): 1}
    assert counted_at_every_end(store) == {"failed": 1}
    redrive(store, run)
    assert counted(store) == {}


def test_a_refused_retry_or_discard_changes_no_count(store, worker):
    failed, succeeded = enqueue_and_fail(store), enqueue_and_succeed(store)
    before = counted(store)

    assert not redrive(store, failed, generation=7).done
    discarded = store.do(DiscardDead(succeeded, ACTOR, "known"))

    assert not discarded.done
    assert counted(store) == before


def test_the_retry_of_a_run_that_ended_without_an_attempt_changes_no_count(store, worker):
    ended = enqueue_and_claim(store)
    settle(store, settle_op(ended, "cancelled", Finish(State.CANCELLED, "requested")))
    queued = enqueue_one(store)
    cancel(store, queued)

    redrive(store, queued)

    assert counted(store) == {(TASK, "cancelled"): 1}

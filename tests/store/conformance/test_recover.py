"""A dead worker's runs are judged once and continue on other workers.

The dead worker can no longer settle them.
"""

import pytest

from duly.core.states import SlotKind
from duly.store.ops.operators import InterruptRestored, InterruptRestoredResult
from duly.store.ops.recovery import HandBackUnknown, RecoverOrphans
from duly.store.ops.runs import Settled
from duly.store.ops.upkeep import Prune
from duly.store.postgres import wakeup as postgres
from duly.store.sqlite import wakeup as sqlite
from tests.store.conformance.verbs import (
    ACTOR,
    DAY_SECONDS,
    OTHER_WORKER,
    SECOND,
    WORKER,
    cancel,
    claim,
    claim_one,
    crashed,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    hand_back,
    lost,
    outcomes_of,
    recover,
    register,
    run_of,
    state_of,
    succeed,
    unstarted,
)

pytestmark = pytest.mark.pgbouncer


def worker_state(store, worker=WORKER):
    return {record.id: record.state for record in store.list_workers()}[worker]


def test_a_dead_workers_runs_are_judged(store, worker):
    ids = enqueue_many(store, 3)
    claim(store)
    seen = []

    def judge(run):
        seen.append(run)
        return lost(run)

    recovered = recover(store, judge=judge)

    assert sorted(recovered) == ids
    assert sorted(run.run_id for run in seen) == ids
    assert {run.claim_number for run in seen} == {1}
    assert worker_state(store) == "dead"


def test_recovery_passes_the_judge_the_facts_of_the_lost_attempt(store, worker):
    found = enqueue_and_claim(store, key="k")
    cancel(store, found.run_id)
    seen = []

    def judge(run):
        seen.append(run)
        return lost(run)

    recover(store, judge=judge)

    (held,) = seen
    assert (held.run_id, held.claim_number, held.task) == (found.run_id, 1, found.task)
    assert (held.lane, held.attempt, held.retries_used, held.crashes) == (found.lane, 1, 0, 0)
    assert held.keyed
    assert held.cancel_requested


@pytest.mark.parametrize("lane", [SlotKind.THREAD, SlotKind.THREAD_HOLD])
def test_a_lost_attempt_began_when_it_was_claimed(store, worker, clock, lane):
    """The start is not the time of the recovery: an operator who looks for its effects needs it."""
    run_id = enqueue_and_claim(store, lane=lane).run_id
    claimed_at = run_of(store, run_id).claimed_at
    clock.advance(1)

    recover(store)

    (attempt,) = store.list_attempts(run_id)
    assert attempt.started_at == claimed_at
    assert attempt.finished_at > claimed_at


def test_a_lost_run_is_settled_with_the_verdict_of_the_judge(store, worker):
    found = enqueue_and_claim(store)
    register(store, OTHER_WORKER)

    recover(store)

    assert outcomes_of(store, found.run_id) == [(1, "lost")]
    again = claim_one(store, worker=OTHER_WORKER)
    assert (again.run_id, again.claim_number, again.attempt) == (found.run_id, 2, 2)
    assert again.crashes == 1


def test_a_run_whose_body_had_not_started_is_handed_back(store, worker):
    found = enqueue_and_claim(store)
    register(store, OTHER_WORKER)

    recover(store, judge=unstarted)

    assert store.list_attempts(found.run_id) == []
    again = claim_one(store, worker=OTHER_WORKER)
    assert (again.claim_number, again.attempt, again.crashes) == (2, 1, 0)


def test_a_hold_run_of_a_dead_worker_is_interrupted(store, worker):
    found = enqueue_and_claim(store, lane=SlotKind.THREAD_HOLD)

    recover(store)

    run = run_of(store, found.run_id)
    assert (run.state, run.cause) == ("interrupted", "crashed")


def test_a_run_with_a_cancel_request_is_cancelled_when_its_worker_is_recovered(store, worker):
    found = enqueue_and_claim(store)
    cancel(store, found.run_id)

    recover(store)

    run = run_of(store, found.run_id)
    assert (run.state, run.cause) == ("cancelled", "requested")


def test_recovery_does_not_affect_other_workers(store, worker):
    mine = enqueue_and_claim(store)
    register(store, OTHER_WORKER)
    theirs = enqueue_and_claim(store, worker=OTHER_WORKER)

    recovered = recover(store)

    assert recovered == [mine.run_id]
    assert succeed(store, theirs) is Settled.DONE
    assert worker_state(store, OTHER_WORKER) == "live"


def test_recovering_twice_takes_each_run_once(store, worker):
    enqueue_and_claim(store)

    assert len(recover(store)) == 1
    assert recover(store) == []


def test_a_worker_that_stops_in_good_order_is_stopped_and_not_dead(store, worker, clock):
    recover(store, stopped=True)

    (record,) = store.list_workers()
    assert (record.state, record.stopped_at) == ("stopped", clock.now())


def test_a_stopped_worker_stays_stopped(store, worker, clock):
    recover(store, stopped=True)
    stopped_at = clock.now()
    clock.advance(10)

    recover(store)

    (record,) = store.list_workers()
    assert (record.state, record.stopped_at) == ("stopped", stopped_at)


def test_recovering_an_unknown_worker_does_nothing(store):
    assert recover(store, OTHER_WORKER) == []
    assert store.list_workers() == []


def test_a_judge_that_raises_changes_nothing(store, worker, tables):
    enqueue_many(store, 3)
    claim(store)
    before = tables.everything()

    def judge(run):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recover(store, judge=judge)

    assert tables.everything() == before


def test_all_runs_of_workers_that_are_not_live_are_recovered(store, worker, tables):
    orphans = enqueue_many(store, 3)
    claim(store)
    tables.execute("UPDATE duly_workers SET state = 'dead', stopped_at = started_at")

    answers = [store.do(RecoverOrphans(lost, limit=2)) for _ in range(3)]

    assert [len(answer) for answer in answers] == [2, 1, 0]
    assert sorted(answers[0] + answers[1]) == orphans
    assert {tuple(outcomes_of(store, run_id)) for run_id in orphans} == {((1, "lost"),)}


def test_the_runs_of_a_live_worker_are_no_orphans(store, worker):
    found = enqueue_and_claim(store)

    assert store.apply([RecoverOrphans(lost, limit=10)]) == [[]]
    assert succeed(store, found) is Settled.DONE


def test_orphans_of_a_worker_without_a_row_are_recovered(store, worker, tables):
    found = enqueue_and_claim(store)
    tables.execute("DELETE FROM duly_workers")

    assert store.apply([RecoverOrphans(lost, limit=10)]) == [[found.run_id]]


def test_a_worker_hands_back_runs_that_it_does_not_know_it_holds(store, worker):
    enqueue_many(store, 3)
    known, forgotten, wanted = claim(store)
    cancel(store, wanted.run_id)

    handed_back = store.do(HandBackUnknown(WORKER, frozenset({known.run_id})))

    assert sorted(handed_back) == [forgotten.run_id, wanted.run_id]
    assert state_of(store, forgotten.run_id) == "queued"
    assert run_of(store, forgotten.run_id).attempt == 1
    assert store.list_attempts(forgotten.run_id) == []
    assert run_of(store, wanted.run_id).cause == "requested"
    assert succeed(store, known) is Settled.DONE
    assert succeed(store, forgotten) is Settled.CLAIM_LOST
    assert worker_state(store) == "live"


def test_a_worker_that_knows_all_its_runs_hands_nothing_back(store, worker, tables):
    found = enqueue_and_claim(store)
    before = tables.everything()

    answer = store.apply([HandBackUnknown(WORKER, frozenset({found.run_id, "another"}))])

    assert answer == [[]]
    assert tables.everything() == before


def test_a_worker_hands_back_only_its_own_runs(store, worker):
    register(store, OTHER_WORKER)
    enqueue_and_claim(store, worker=OTHER_WORKER)

    assert store.apply([HandBackUnknown(WORKER, frozenset())]) == [[]]


def test_a_handed_back_run_is_claimed_by_another_worker(store, worker):
    found = enqueue_and_claim(store)
    register(store, OTHER_WORKER)
    hand_back(store, found)

    again = claim_one(store, worker=OTHER_WORKER)

    assert (again.run_id, again.claim_number) == (found.run_id, 2)


def test_workers_are_listed_with_the_numbers_of_their_runs(store, worker, clock):
    register(store, OTHER_WORKER)
    enqueue_many(store, 2)
    claim(store)

    records = {record.id: record for record in store.list_workers()}

    mine = records[WORKER]
    assert (mine.state, mine.host, mine.pid, mine.running) == ("live", "host", 4711, 2)
    assert (mine.lease_seconds, mine.queues) == (15.0, '["default"]')
    assert (mine.started_at, mine.stopped_at) == (clock.now(), None)
    assert records[OTHER_WORKER].running == 0


def test_a_worker_that_was_not_seen_for_a_whole_lease_is_not_listed_as_live(store, worker, clock):
    clock.advance(15)
    within = worker_state(store)
    clock.advance(0.1)

    assert (within, worker_state(store)) == ("live", "silent")
    recover(store)
    assert worker_state(store) == "dead"


def test_a_dead_worker_is_pruned_and_a_live_one_is_not(store, worker, clock):
    register(store, OTHER_WORKER)
    recover(store)
    clock.advance(DAY_SECONDS)

    store.do(Prune(older_than=3600 * SECOND, limit=10))

    assert [record.id for record in store.list_workers()] == [OTHER_WORKER]


def test_a_run_that_was_claimed_again_succeeds_only_for_its_new_worker(store, worker):
    slow = enqueue_and_claim(store)
    recover(store, judge=unstarted)
    register(store, OTHER_WORKER)
    quick = claim_one(store, worker=OTHER_WORKER)

    answers = [succeed(store, slow), succeed(store, quick)]

    assert answers == [Settled.CLAIM_LOST, Settled.DONE]
    assert outcomes_of(store, slow.run_id) == [(2, "returned")]


def test_a_run_fails_at_its_last_recovery(store, worker):
    run_id = enqueue_one(store)
    claim(store)

    recover(store, judge=crashed)

    assert (state_of(store, run_id), run_of(store, run_id).cause) == ("failed", "crashed")


# -- hints --


@pytest.fixture
def hints(monkeypatch):
    """The hints that were sent."""
    sent = []
    for hints in (sqlite.SqliteHints, postgres.PostgresHints):
        monkeypatch.setattr(hints, "send", lambda hints, *_: sent.append(hints))
    return sent


def test_a_recovery_without_runs_sends_no_hint(store, worker, hints):
    store.do(HandBackUnknown(WORKER, frozenset()))
    store.do(RecoverOrphans(lost, limit=10))
    recover(store)

    assert hints == []


@pytest.mark.parametrize(
    "find",
    [
        lambda store: store.apply([HandBackUnknown(WORKER, frozenset())]),
        lambda store: recover(store, judge=unstarted),
    ],
)
def test_a_run_that_is_queued_again_wakes_workers(store, worker, hints, find):
    enqueue_and_claim(store)
    hints.clear()

    find(store)

    assert len(hints) == 1


def test_runs_that_are_newer_than_a_backup_are_counted_once_by_its_last_batch(store, clock):
    enqueue_many(store, 3)
    made_at = store.now()
    clock.advance(seconds=1)
    enqueue_many(store, 2)
    op = InterruptRestored(made_at, ACTOR, "restored", 2)

    (first,), (last,) = store.apply([op]), store.apply([op])

    assert (first, last) == (InterruptRestoredResult(2, 0, 0), InterruptRestoredResult(1, 0, 2))

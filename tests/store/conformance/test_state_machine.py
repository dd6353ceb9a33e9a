"""Random sequences of acts, on the store and on a model of dictionaries: both must always agree.

The model defines what should happen. In addition, the answers are checked without it (the
invariants I1 to I8, I12 and I14 of duly.prove), so that a mistake that store and model share is
found too.
"""

import itertools
import json
import os
from collections import Counter
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from duly.clock import MICROSECONDS
from duly.core.outcome import ErrorText
from duly.core.record import Claim, RunRecord
from duly.core.states import FINAL, State
from duly.core.verdict import Finish, Requeue
from duly.store.ops.operators import (
    Cancel,
    DiscardDead,
    PauseQueue,
    RescheduleRun,
    ResetKey,
    RetryRun,
)
from duly.store.ops.recovery import HandBackUnknown, Recover, RecoverOrphans
from duly.store.ops.runs import ClaimRuns, Enqueue, Key, Settle, Settled, Want
from duly.store.ops.updates import SetProgress
from duly.store.ops.upkeep import Prune, RegisterWorker, Tick
from duly.store.reads import RunFilter
from tests.store.conformance.verbs import ACTOR, BOOM, OTHER_TASK, TASK, TASKS, lost, unstarted
from tests.store.model import ModelStore, Run
from tests.store.separate_commits import SeparateCommits

pytestmark = pytest.mark.pgbouncer

ROUNDS = max(1, round(float(os.environ.get("DULY_TEST_SCALE", "1"))))
"""A long run consists of many tests, so that each stays within the time limit of a test."""
EXAMPLES = {"sqlite-wal": 60, "sqlite-rollback": 20, "pgbouncer": 5}
EXAMPLES_ELSEWHERE = 12
EXAMPLES_OF_SEPARATE_COMMITS = 10
"""Every execution draws other examples, and a long one draws them several times."""
STEPS = 40

QUEUES = ("a", "b")
LANES = ("thread", "thread-hold")
KEYS = ("k1", "k2")
ALL_OF_THEM = 100_000
LATEST_CLAIM_MARK = 1_000
"""Claims of one instant differ by at most this number of microseconds."""

NOT_COMPARED = {"place", "attempts"}
COMPARED = [field.name for field in fields(Run) if field.name not in NOT_COMPARED]


def verdict_of(how: str, claim: Claim) -> tuple[str, Finish | Requeue, ErrorText | None]:
    """Return outcome, verdict and error of an attempt that ended in a certain way."""
    again = Requeue(0.0, claim.attempt + 1, claim.retries_used + 1, claim.crashes, lane=claim.lane)
    same = again._replace(attempt=claim.attempt, retries_used=claim.retries_used)
    return {
        "success": ("returned", Finish(State.SUCCEEDED, None, '"fine"'), None),
        "failure": ("raised", Finish(State.FAILED, "raised"), BOOM),
        "interrupted": ("timed_out", Finish(State.INTERRUPTED, "timed_out"), BOOM),
        "given in to a cancel": ("cancelled", Finish(State.CANCELLED, "requested"), None),
        "retry now": ("raised", again, BOOM),
        "retry later": ("raised", again._replace(after=7.5), BOOM),
        "snooze": ("snoozed", same._replace(after=3.0), None),
        "hand back": ("handed_back", same._replace(recorded=False), None),
    }[how]


HOW = st.sampled_from(
    [
        "success",
        "failure",
        "interrupted",
        "given in to a cancel",
        "retry now",
        "retry later",
        "snooze",
        "hand back",
    ]
)

NUMBERS = st.integers(0, 7)
"""Picks one of the runs or workers that the model knows; see `_pick`."""

orders = st.builds(
    lambda seconds, expires, key, **rest: Enqueue(
        run_id="",
        arguments="[[],{}]",
        delay=seconds * MICROSECONDS,
        expires=None if expires is None else expires * MICROSECONDS,
        key=key,
        **rest,
    ),
    task=st.sampled_from(TASKS),
    queue=st.sampled_from(QUEUES),
    lane=st.sampled_from(LANES),
    priority=st.sampled_from([0, 0, 0, 1, -1]),
    seconds=st.sampled_from([0, 0, 0, 5, 30]),
    expires=st.sampled_from([None, None, None, 20]),
    tags=st.sampled_from([None, '{"customer":"17"}']),
    key=st.none()
    | st.builds(
        Key,
        text=st.sampled_from(KEYS),
        fingerprint=st.sampled_from(["print-1", "print-1", "print-2"]),
        ttl=st.sampled_from([None, 50 * MICROSECONDS]),
        active_only=st.booleans(),
        other_names=st.just(()),
    ),
)


class StoreMachine(RuleBasedStateMachine):
    """Carries out every act of an engine, its workers and its operators on a store."""

    runs = Bundle("runs")
    claims = Bundle("claims")
    workers = Bundle("workers")

    def __init__(self, opened: Any) -> None:
        super().__init__()
        self.store, self.clock, tables = opened.store, opened.clock, opened.tables
        tables.wipe()
        self.model = ModelStore()
        self.model.now = self.clock.now()
        self.numbers = itertools.count(1)
        self.accepted: set[str] = set()
        self.pruned: set[str] = set()
        self.holders: dict[str, Claim] = {}
        self.issued: list[Claim] = []
        self.claimed: Counter[str] = Counter()
        self.seen: dict[str, RunRecord] = {}
        self.claimed_at: dict[str, int] = {}

    # -- workers --

    @initialize(target=workers)
    def start_with_a_worker(self):
        return self._register(self._next_id(), TASKS)

    @rule(target=workers, tasks=st.sampled_from([TASKS, (TASK,), (OTHER_TASK,)]))
    def start_a_worker(self, tasks):
        return self._register(self._next_id(), tasks)

    @rule(worker=workers)
    def register_again(self, worker):
        self._register(worker, TASKS)

    def _live_worker(self, number):
        """Return one of the live workers, or start one if no worker is live."""
        live = [worker_id for worker_id, worker in self.model.workers.items() if worker.live]
        return _pick(live, number) if live else self._register(self._next_id(), TASKS)

    def _next_id(self):
        """Return an id that is the same at every replay, and later than those before."""
        return f"00000000-0000-7000-8000-{next(self.numbers):012x}"

    def _register(self, worker, tasks):
        op = RegisterWorker(worker, "host", 1, 15.0, "[]", json.dumps(tasks))
        self.store.do(op)
        self.model.register(op, tasks)
        return worker

    # -- in and out --

    @rule(target=runs, batch=st.lists(orders, min_size=1, max_size=4))
    def enqueue(self, batch):
        batch = [op._replace(run_id=self._next_id()) for op in batch]
        answers = self.store.apply(batch)

        assert answers == [self.model.enqueue(op) for op in batch]
        self.accepted |= {answer.run_id for answer in answers if answer.new}
        return multiple(*(answer.run_id for answer in answers))

    @rule(
        target=claims,
        worker=workers,
        limit=st.integers(1, 3),
        queue=st.sampled_from([None, None, *QUEUES]),
        after_queue=st.sampled_from(["", *QUEUES]),
        tasks=st.sampled_from([TASKS, TASKS, (TASK,)]),
    )
    def claim(self, worker, limit, queue, after_queue, tasks):
        wants = tuple(Want(queue, lane, limit) for lane in LANES)
        return self._claim(ClaimRuns(worker, wants, tasks, after_queue))

    @rule(target=claims, number=NUMBERS, limit=st.integers(1, 4))
    def claim_for_a_live_worker(self, number, limit):
        wants = tuple(Want(None, lane, limit) for lane in LANES)
        return self._claim(ClaimRuns(self._live_worker(number), wants, TASKS))

    @rule(target=claims, batch=st.lists(orders, min_size=1, max_size=3), number=NUMBERS)
    def enqueue_and_claim(self, batch, number):
        worker = self._live_worker(number)
        batch = [op._replace(run_id=self._next_id(), delay=0) for op in batch]
        op = ClaimRuns(worker, tuple(Want(None, lane, 3) for lane in LANES), TASKS)

        *answers, found = self.store.apply([*batch, op])

        assert answers == [self.model.enqueue(op) for op in batch]
        self.accepted |= {answer.run_id for answer in answers if answer.new}
        self._check_claims(op, found)
        return multiple(*found)

    def _claim(self, op):
        found = self.store.do(op)

        self._check_claims(op, found)
        return multiple(*found)

    def _check_claims(self, op, found):
        now = self.model.now
        assert [(claim.run_id, claim.claim_number) for claim in found] == self.model.claim(op)
        for claim in found:
            assert claim.run_id not in self.holders, "I5: one holder"
            self.claimed[claim.run_id] += 1
            assert claim.claim_number == self.claimed[claim.run_id], "I4: no gap, no repeat"
            assert claim.due_at <= now, "I12: no run before its time"
            self.holders[claim.run_id] = claim
            self.issued.append(claim)
            self.claimed_at[claim.run_id] = now

    @rule(claim=claims, how=HOW)
    def settle_in_time_or_late(self, claim, how):
        self._settle([(claim, how)])

    @precondition(lambda self: self.holders)
    @rule(number=NUMBERS, how=HOW)
    def settle_in_time(self, number, how):
        self._settle([(_pick(list(self.holders.values()), number), how)])

    @precondition(lambda self: self._lost_claims())
    @rule(number=NUMBERS, how=HOW)
    def settle_a_run_that_another_worker_holds(self, number, how):
        self._settle([(_pick(self._lost_claims(), number), how)])

    def _lost_claims(self):
        """Return the claims on runs that another claim holds now."""
        return [
            claim
            for claim in self.issued
            if self._claim_number_held(claim.run_id) not in {None, claim.claim_number}
        ]

    @rule(batch=st.lists(st.tuples(claims, HOW), min_size=2, max_size=4, unique_by=lambda b: b[0]))
    def settle_some(self, batch):
        self._settle(batch)

    @rule(claim=claims, worker=workers, target=claims)
    def settle_and_claim_more(self, claim, worker):
        op = ClaimRuns(worker, tuple(Want(None, lane, 2) for lane in LANES), TASKS)
        settle = Settle(claim.run_id, claim.claim_number, *verdict_of("success", claim)[:2], 0)

        answer, found = self.store.apply([settle, op])

        self._check_settled(settle, answer)
        self._check_claims(op, found)
        return multiple(*found)

    def _settle(self, batch):
        ops = []
        for claim, how in batch:
            outcome, verdict, error = verdict_of(how, claim)
            ops.append(Settle(claim.run_id, claim.claim_number, outcome, verdict, 0, error))

        answers = self.store.apply(ops)

        for op, answer in zip(ops, answers, strict=True):
            self._check_settled(op, answer)

    def _check_settled(self, op, answer):
        held = self.model.holds(op.run_id, op.claim_number)
        assert held == (self._claim_number_held(op.run_id) == op.claim_number)
        assert answer == self.model.settle(op)
        if held and answer is Settled.DONE:
            del self.holders[op.run_id]
        if answer is Settled.CANCEL_REQUESTED:
            assert held, "I6: only a holder has to decide again"

    def _claim_number_held(self, run_id):
        holder = self.holders.get(run_id)
        return None if holder is None else holder.claim_number

    @rule(claim=claims)
    def report_progress(self, claim):
        heard = self.store.do(SetProgress(claim.run_id, claim.claim_number, 0.5, None))

        assert heard == self.model.holds(claim.run_id, claim.claim_number)

    # -- recovery and upkeep --

    @rule(worker=workers, stopped=st.booleans())
    def recover_any_worker(self, worker, stopped):
        self._recover(Recover(worker, lost, stopped))

    @precondition(lambda self: self.holders)
    @rule(number=NUMBERS, judge=st.sampled_from([lost, unstarted]))
    def recover_a_worker_that_holds_runs(self, number, judge):
        run = self.model.runs[_pick(list(self.holders), number)]
        self._recover(Recover(run.worker_id, judge))

    def _recover(self, op):
        orphans = RecoverOrphans(lost, ALL_OF_THEM)

        recovered, left_over = self.store.apply([op, orphans])

        self._check_recovered(recovered, self.model.recover(op))
        self._check_recovered(left_over, self.model.recover_orphans(orphans))

    @precondition(lambda self: self.holders)
    @rule(number=NUMBERS, known=st.lists(claims, max_size=2))
    def hand_back_unknown(self, number, known):
        run = self.model.runs[_pick(list(self.holders), number)]
        op = HandBackUnknown(run.worker_id, frozenset(claim.run_id for claim in known))

        self._check_recovered(self.store.do(op), self.model.hand_back_unknown(op))

    def _check_recovered(self, answer, expected):
        assert sorted(answer) == expected
        for run_id in answer:
            del self.holders[run_id]

    @rule()
    def tick(self):
        assert self.store.apply([Tick(ALL_OF_THEM)]) == [self.model.tick()]

    @rule(seconds=st.sampled_from([0.000001, 1, 5, 20, 50]))
    def let_time_pass(self, seconds):
        self.clock.advance(seconds)
        self.model.now = self.clock.now()

    @rule(older_than=st.sampled_from([0, 30]))
    def prune(self, older_than):
        op = Prune(older_than * MICROSECONDS, 1000)
        before = set(self.model.runs)

        assert self.store.do(op).runs == self.model.prune(op)
        self.pruned |= before - set(self.model.runs)

    # -- operators --

    @precondition(lambda self: self.accepted)
    @rule(number=NUMBERS, reason=st.sampled_from(["", "not wanted"]))
    def cancel(self, number, reason):
        self._cancel(_pick(sorted(self.accepted), number), reason)

    @precondition(lambda self: self.holders)
    @rule(number=NUMBERS)
    def cancel_a_running_run(self, number):
        self._cancel(_pick(list(self.holders), number), "")

    def _cancel(self, run_id, reason):
        answers = self.store.apply([Cancel(run_id, ACTOR, reason)])

        assert answers == [self.model.cancel(run_id, reason)]

    @precondition(lambda self: self.holders)
    @rule(number=NUMBERS, how=HOW)
    def cancel_and_settle(self, number, how):
        claim = _pick(list(self.holders.values()), number)
        self._cancel(claim.run_id, "")
        self._settle([(claim, how)])

    @precondition(lambda self: self.accepted)
    @rule(
        number=NUMBERS,
        seconds=st.sampled_from([None, 0, 0, 10]),
        queue=st.sampled_from([None, *QUEUES]),
        priority=st.sampled_from([None, 3]),
    )
    def reschedule(self, number, seconds, queue, priority):
        delay = None if seconds is None else seconds * MICROSECONDS
        run_id = _pick(sorted(self.accepted), number)
        op = RescheduleRun(run_id, ACTOR, delay=delay, queue=queue, priority=priority)

        (answer,) = self.store.apply([op])

        assert (answer.done, answer.state) == self.model.reschedule(op)

    @precondition(lambda self: self._ended())
    @rule(number=NUMBERS)
    def redrive_a_final_run(self, number):
        op = RetryRun(_pick(self._ended(), number), ACTOR)

        assert self.store.apply([op]) == [self.model.redrive(op)]

    def _ended(self):
        return [run.id for run in self.model.runs.values() if run.state in FINAL]

    @rule(
        run_id=runs,
        seconds=st.sampled_from([0, 0, 10]),
        generation=st.sampled_from([None, None, 1]),
        arguments=st.sampled_from([None, '[[],{"edited":true}]']),
    )
    def redrive(self, run_id, seconds, generation, arguments):
        op = RetryRun(
            run_id,
            ACTOR,
            delay=seconds * MICROSECONDS,
            generation=generation,
            arguments=arguments,
        )

        assert self.store.apply([op]) == [self.model.redrive(op)]

    @rule(run_id=runs)
    def discard(self, run_id):
        op = DiscardDead(run_id, ACTOR, "known")

        assert self.store.apply([op]) == [self.model.discard(op)]

    @rule(queue=st.sampled_from(QUEUES), paused=st.booleans())
    def pause_or_resume(self, queue, paused):
        self.store.do(PauseQueue(queue, paused, ACTOR))
        (self.model.paused.add if paused else self.model.paused.discard)(queue)

    @rule(task=st.sampled_from(TASKS), text=st.sampled_from(KEYS))
    def reset_key(self, task, text):
        answers = self.store.apply([ResetKey(task, text, ACTOR)])

        assert answers == [self.model.reset_key(task, text)]

    # -- invariants after every step --

    @invariant()
    def every_run_equals_that_of_the_model(self):
        records = {record.id: record for record in self.store.list_runs(RunFilter(limit=10_000))}

        assert set(records) | self.pruned == self.accepted, (
            "I1, I2, I14: no run lost, no run invented"
        )
        assert set(records) == set(self.model.runs)
        for run_id, record in records.items():
            expected = self.model.runs[run_id]
            assert _compared(record) == _compared(expected)
            self._check_holder(record)
            self._check_against_the_past(record)
        self.seen = records

    def _check_holder(self, record):
        """I5, I6: a run is running if and only if its latest claim is held."""
        holder = self._claim_number_held(record.id)
        assert (record.state == "running") == (holder is not None)
        if holder is not None:
            assert holder == record.claim_number
            claimed_at = self.claimed_at[record.id]
            assert claimed_at <= record.claimed_at <= claimed_at + LATEST_CLAIM_MARK

    def _check_against_the_past(self, record):
        """I4, I7: claim numbers only grow, and only a new generation leaves a final state."""
        before = self.seen.get(record.id)
        if before is None:
            return
        assert before.claim_number <= record.claim_number
        assert before.generation <= record.generation <= before.generation + 1
        if before.state in FINAL and record.generation == before.generation:
            discarded = (record.state, record.cause) == ("cancelled", "discarded")
            assert record == before or discarded
        if record.generation > before.generation:
            assert before.state in FINAL

    def teardown(self):
        for run_id, run in self.model.runs.items():
            attempts = self.store.list_attempts(run_id)
            found = {a.claim_number: (a.generation, a.attempt, a.outcome) for a in attempts}
            assert found == run.attempts
            assert [a.claim_number for a in attempts] == sorted(found), "I4: each claim once"
            successes = Counter(a.generation for a in attempts if a.outcome == "returned")
            assert set(successes.values()) <= {1}, "I8: one success per generation"


def _pick(options, number):
    return options[number % len(options)]


def _compared(run):
    return {name: getattr(run, name) for name in COMPARED}


@pytest.mark.scaled
@pytest.mark.timeout(240)  # Seconds on an idle machine. A busy machine may take longer.
@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_store_and_model_agree_after_random_acts(opened, store_kind, round_number):
    check_against_the_model(opened, EXAMPLES.get(store_kind, EXAMPLES_ELSEWHERE))


@pytest.mark.timeout(120)
def test_store_and_model_agree_if_each_op_commits_separately(opened):
    separate = SeparateCommits(opened.store)

    check_against_the_model(opened._replace(store=separate), EXAMPLES_OF_SEPARATE_COMMITS)

    assert separate.separated > 0


def check_against_the_model(opened, examples):
    """Run a number of random sequences of acts on a store and on the model, and compare the two."""
    run_state_machine_as_test(
        lambda: StoreMachine(opened),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )

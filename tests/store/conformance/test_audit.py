"""The audit names every state that must never occur, and nothing else."""

import pytest

from duly.core.audit import AUDIT_CHECKS
from duly.store.ops.guard import AcquireKey
from duly.store.ops.steps import BeginStep
from duly.store.ops.updates import AddLogs
from tests.store.conformance.verbs import (
    OTHER_WORKER,
    SECOND,
    cancel,
    claim_one,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_one,
    fail,
    recover,
    redrive,
    register,
    retry_later,
    retry_now,
    succeed,
    tick,
)

GHOST = "00000000-0000-7000-8000-0000000000ff"
COPY = """
    id, task, queue, lane, priority, generation, claim_number, attempt, retries_used, crashes,
    created_at, due_at, expires_at, key, tags, arguments
"""
ATTEMPT = (
    "INSERT INTO duly_attempts (run_id, claim_number, generation, attempt, outcome, finished_at)"
)
PLANTS = {
    "runs_missing": ("1 run", "DELETE FROM duly_runs WHERE key = 'held'"),
    "runs_unaccounted": ("1 run", "INSERT INTO duly_accounts (accepted) VALUES (-1)"),
    "key_outlived_run": ("ended", "DELETE FROM duly_history"),
    "in_two_places": ("held", "INSERT INTO duly_waiting (<copy>) SELECT <copy> FROM duly_runs"),
    "held_by_nobody": ("held", "UPDATE duly_runs SET worker_id = 'nobody'"),
    "settled_twice": (
        "ended",
        "<attempt> SELECT id, claim_number, generation, 1, 'lost', finished_at FROM duly_history",
    ),
    "settled_while_held": (
        "held",
        "<attempt> SELECT id, claim_number, generation, 1, 'raised', created_at FROM duly_runs",
    ),
    "claim_ahead": (
        "held",
        "<attempt> SELECT id, 9, generation, 1, 'raised', created_at FROM duly_runs",
    ),
    "ended_without_claim": ("ended", "UPDATE duly_history SET claim_number = 0"),
    "succeeded_twice": (
        "ended",
        "<attempt> SELECT id, 0, generation, 1, 'returned', finished_at FROM duly_history",
    ),
    "attempts_of_no_run": (
        "ghost",
        "<attempt> SELECT '<ghost>', 1, 1, 1, 'raised', finished_at FROM duly_history",
    ),
    "logs_of_no_run": ("ghost", "UPDATE duly_logs SET run_id = '<ghost>'"),
    "steps_of_no_run": ("ghost", "UPDATE duly_steps SET run_id = '<ghost>'"),
    "tags_of_no_run": ("ghost", "UPDATE duly_tags SET run_id = '<ghost>'"),
    "tags_missing": ("waiting", "DELETE FROM duly_tags"),
    "key_of_no_run": ("ended", "UPDATE duly_keys SET expires_at = NULL"),
    "key_expiring": (
        "held",
        "UPDATE duly_keys SET expires_at = (SELECT min(created_at) FROM duly_runs)",
    ),
    "fired_without_run": (
        "ghost",
        """INSERT INTO duly_firings (schedule, instant, last_instant, instants, version, outcome,
                                     run_id, fired_at)
           SELECT 's', created_at, created_at, 1, 1, 'run', '<ghost>', finished_at
             FROM duly_history""",
    ),
    "firings_miscounted": (
        "s",
        """INSERT INTO duly_schedules (name, source, place, task, queue, lane, priority, arguments,
                                       trigger, rules, state, waiting, failures_from, created_at,
                                       updated_at)
           SELECT 's', 'runtime', 'p', task, queue, lane, 0, '[]', '{}', '{}', 'ended', 2,
                  created_at, created_at, created_at
             FROM duly_history""",
    ),
    "fence_behind": ("k", "UPDATE duly_guarded SET fence = 1000"),
}
"""For each check: the subject that the audit should name, and the damage that a test does."""


def flaws(store):
    """Return the findings of the audit, as (check, subject)."""
    return [(flaw.check, flaw.subject) for flaw in store.audit(100)]


def reach_every_state(store, clock):
    """Bring runs into every state that they can have; return a run that is held."""
    enqueue_and_succeed(store, key="a", tags={"order": "1"})
    failed = enqueue_and_fail(store, key="b")
    redrive(store, failed)
    tick(store)
    succeed(store, claim_one(store))
    cancel(store, enqueue_one(store, key="c"))
    held = enqueue_and_claim(store, tags={"order": "2", "of": "ada"})
    retry_now(store, held)
    held = claim_one(store)
    store.do(AddLogs(held.run_id, held.claim_number, ((0, "INFO", "hello"),)))
    store.do(BeginStep(held.run_id, held.claim_number, "rest", "step", None, None))
    retry_later(store, held, 60)
    register(store, OTHER_WORKER)
    lost = enqueue_and_claim(store, worker=OTHER_WORKER)
    recover(store, OTHER_WORKER)
    fail(store, claim_one(store))
    assert lost.run_id
    enqueue_one(store, key="d")
    held = claim_one(store)
    clock.advance(3600)
    return held


def test_the_audit_finds_nothing_in_a_database_that_only_duly_wrote(store, worker, clock):
    reach_every_state(store, clock)

    assert flaws(store) == []
    count = store.count_runs()
    assert (count.queued, count.running, count.waiting, count.finished) == (0, 1, 1, 4)


def test_the_audit_reports_a_worker_that_died_long_ago_but_not_one_that_died_just_now(
    store, worker, clock, tables
):
    held = enqueue_and_claim(store)
    tables.execute("UPDATE duly_workers SET state = 'dead', stopped_at = started_at")

    assert flaws(store) == []
    clock.advance(61)
    assert flaws(store) == [("held_by_nobody", held.run_id)]


@pytest.mark.parametrize("check", AUDIT_CHECKS)
def test_every_planted_corruption_is_named(store, worker, clock, tables, check):
    ended = enqueue_and_succeed(store, key="done")
    waiting = enqueue_and_claim(store, tags={"order": "2"})
    store.do(AddLogs(waiting.run_id, waiting.claim_number, ((0, "INFO", "hello"),)))
    store.do(BeginStep(waiting.run_id, waiting.claim_number, "rest", "step", None, None))
    retry_later(store, waiting, 60)
    enqueue_one(store, key="held")
    held = claim_one(store)
    store.do(AcquireKey("k", "owner", "holder", None, 60 * SECOND, None))
    assert flaws(store) == []

    who, sql = PLANTS[check]
    for mark, text in (("<copy>", COPY), ("<attempt>", ATTEMPT), ("<ghost>", GHOST)):
        sql = sql.replace(mark, text)
    tables.execute(sql)

    runs = {"held": held.run_id, "ended": ended, "waiting": waiting.run_id, "ghost": GHOST}
    assert (check, runs.get(who, who)) in flaws(store)

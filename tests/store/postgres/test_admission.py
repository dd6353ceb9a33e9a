"""Limits on PostgreSQL, where claims of several workers overlap."""

from contextlib import closing

import psycopg
import pytest

from duly.core.concurrency_limits import limited_lane
from duly.store.ops.operators import LimitQueue
from duly.store.store_factory import open_store
from tests.servers.processes import wait_until
from tests.store.conformance.test_limits import claim
from tests.store.conformance.verbs import ACTOR, LANE, TASK, TIMEOUT, at_once, enqueue_many

PAUSE = 4711
"""The key of the advisory lock that claims wait for after they have counted and taken runs."""


@pytest.mark.parametrize("of", ["queue", "task"])
def test_a_claim_under_a_limit_counts_what_an_open_claim_has_taken(store, url, of):
    if of == "queue":
        store.do(LimitQueue("default", 1, ACTOR))
    enqueue_many(store, 2, lane=LANE if of == "queue" else limited_lane(LANE, TASK))
    with closing(open_store(url)) as other, psycopg.connect(url, autocommit=True) as holder:
        pause_claims(holder)

        def let_claims_continue():
            wait_until(lambda: waiting(holder) == 2, seconds=TIMEOUT, what="both claims wait")
            holder.execute("SELECT pg_advisory_unlock(%s)", [PAUSE])

        first, second, _ = at_once(
            lambda: claim(store, capacity=1), lambda: claim(other, capacity=1), let_claims_continue
        )

    assert len(first) + len(second) == 1


def test_a_new_limit_waits_for_a_claim_that_counted_under_the_old_one(store, url):
    store.do(LimitQueue("default", 2, ACTOR))
    enqueue_many(store, 2)
    with closing(open_store(url)) as other, psycopg.connect(url, autocommit=True) as holder:
        pause_claims(holder)

        def limit_meanwhile():
            wait_until(lambda: waiting(holder) == 1, seconds=TIMEOUT, what="the claim waits")
            other.do(LimitQueue("default", 1, ACTOR))

        def let_the_claim_continue():
            wait_until(lambda: waiting(holder) == 2, seconds=TIMEOUT, what="both ops wait")
            holder.execute("SELECT pg_advisory_unlock(%s)", [PAUSE])

        found, *_ = at_once(
            lambda: claim(store, capacity=2), limit_meanwhile, let_the_claim_continue
        )

    assert len(found) == 2
    assert store.list_queues()[0].limit == 1


def pause_claims(holder):
    """Let each claim that has taken a run wait before its commit, until the lock is released."""
    holder.execute("SELECT pg_advisory_lock(%s)", [PAUSE])
    holder.execute(
        "CREATE FUNCTION pause_claim() RETURNS trigger LANGUAGE plpgsql AS"
        f" 'BEGIN PERFORM pg_advisory_xact_lock_shared({PAUSE}); RETURN NULL; END'"
    )
    holder.execute(
        "CREATE TRIGGER pause_claim AFTER UPDATE ON duly_runs FOR EACH ROW"
        " WHEN (NEW.state = 'running') EXECUTE FUNCTION pause_claim()"
    )


def waiting(holder):
    """Return how many sessions of this database wait for an advisory lock."""
    ((count,),) = holder.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database ="
        " (SELECT oid FROM pg_database WHERE datname = current_database())"
    ).fetchall()
    return count

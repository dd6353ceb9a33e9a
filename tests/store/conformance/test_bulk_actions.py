"""A bulk action handles its runs page by page, each page once, even if several processes try."""

import json

import pytest

from duly.clock import new_id
from duly.limits import BULK_RETENTION_SECONDS
from duly.store.ops.bulk import AdvanceBulk, StartBulk, TakeBulk
from duly.store.ops.operators import Cancel, InterruptRestored, RetryRun
from tests.store.conformance.verbs import (
    ACTOR,
    SECOND,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_one,
)

pytestmark = pytest.mark.usefixtures("worker")
LEASE = 15 * SECOND


def start(store, act_id=None, *, digest="d", owner="one", total=2):
    op = StartBulk(
        act_id or new_id(), "retry", "{}", digest, total, owner, "retry 2 runs", ACTOR, "again"
    )
    return store.do(op)


def retry_page(store, act_id, run_ids, *, owner="one", after=None, is_over=False):
    acts = tuple(RetryRun(run_id, ACTOR, states=("failed",), generation=1) for run_id in run_ids)
    op = AdvanceBulk(act_id, owner, after, min(run_ids, default=after), acts, is_over=is_over)
    return store.do(op)


def test_a_form_that_is_sent_twice_starts_one_act_with_one_audit_entry(store):
    ticket = new_id()

    first, again = start(store, ticket), start(store, ticket, digest="other")

    assert first == again == ticket
    (act,) = store.list_audit_entries(None, 10)
    assert (act.actor, act.act, act.subject, act.reason) == (
        ACTOR,
        "retry 2 runs",
        f"bulk {ticket}",
        "again",
    )


def test_an_act_that_is_under_way_is_not_started_twice_but_may_start_again_after_its_end(store):
    first = start(store)

    same = start(store)
    retry_page(store, first, [], is_over=True)
    later = start(store)

    assert same == first
    assert later != first
    assert len(store.list_audit_entries(None, 10)) == 2


def test_a_page_is_handled_and_counted_in_one_transaction_and_only_at_the_position_of_the_act(
    store,
):
    dead = sorted((enqueue_and_fail(store) for _ in range(3)), reverse=True)
    act_id = start(store)
    fine = enqueue_and_succeed(store)

    pages = [
        retry_page(store, act_id, dead[:2]),
        retry_page(store, act_id, dead[2:]),  # From the beginning, although the act is past it.
        retry_page(store, act_id, dead[2:], after=dead[1], owner="another"),
        retry_page(store, act_id, [dead[2], fine], after=dead[1], is_over=True),
        retry_page(store, act_id, [], after=min(dead[2], fine)),
    ]

    assert pages == [True, False, False, True, False]
    act = store.get_bulk(act_id)
    assert (act.done, act.skipped, act.error) == (3, 1, None)
    assert act.ended_at is not None
    assert set(store.get_states(dead).values()) == {"queued"}


def test_an_act_of_a_silent_process_is_taken_over_once(store, clock):
    (dead,) = [enqueue_and_fail(store)]
    act_id = start(store)
    assert not store.has_silent_bulk(LEASE)
    assert store.apply([TakeBulk("two", LEASE)]) == [[]]
    clock.advance(16)

    assert store.has_silent_bulk(LEASE)
    assert store.apply([TakeBulk("two", LEASE)]) == [[act_id]]
    assert store.apply([TakeBulk("three", LEASE)]) == [[]]
    late = retry_page(store, act_id, [dead])
    taken = retry_page(store, act_id, [dead], owner="two", is_over=True)

    assert (late, taken) == (False, True)
    assert store.get_bulk(act_id).done == 1
    clock.advance(16)
    assert not store.has_silent_bulk(LEASE)


def test_cancels_and_runs_that_cannot_be_acted_on_are_counted(store):
    act_id = start(store)
    ended, live = enqueue_and_succeed(store), enqueue_one(store)
    acts = (Cancel(live, ACTOR), Cancel(ended, ACTOR))

    store.do(AdvanceBulk(act_id, "one", None, live, acts, skipped=2))

    act = store.get_bulk(act_id)
    assert (act.done, act.skipped, json.loads(act.refused)) == (1, 3, [])


def test_an_act_is_deleted_long_after_its_end(store, clock):
    ended, open_ = start(store), start(store, digest="open")
    retry_page(store, ended, [], is_over=True)
    clock.advance(BULK_RETENTION_SECONDS + 1)

    start(store, digest="new")

    assert store.get_bulk(ended) is None
    assert store.get_bulk(open_) is not None


@pytest.mark.parametrize("act_id", ["x", "", "01"])
def test_an_unknown_act_is_not_found(store, act_id):
    assert store.get_bulk(act_id) is None


def test_an_act_of_a_restored_backup_ends(store):
    act_id = start(store)

    store.do(InterruptRestored(store.now(), ACTOR, "restored", 10))

    act = store.get_bulk(act_id)
    assert act.ended_at is not None
    assert act.error == "restored from a backup"
    assert store.apply([TakeBulk("two", 0)]) == [[]]

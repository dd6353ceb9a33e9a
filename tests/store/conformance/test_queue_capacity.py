"""How many runs may wait in a queue. Enqueues beyond that number are refused, approximately."""

import pytest

from duly.errors import QueueFull
from duly.store.ops.operators import SetQueueCapacity
from tests.store.conformance.verbs import (
    ACTOR,
    claim,
    claim_one,
    enqueue_many,
    order,
    pause,
    succeed,
    tick,
)


@pytest.fixture(autouse=True)
def empty_cache(store):
    """Forget the sizes that the shared store of PostgreSQL keeps for a second."""
    store.queue_capacity.forget()


def bound(store, max_size, queue="default"):
    store.do(SetQueueCapacity(queue, max_size, ACTOR))
    store.queue_capacity.forget()


def enqueue(store, *ops):
    """Enqueue runs as `Task.enqueue` does."""
    if not store.queue_capacity.fit(ops):
        store.check_queue_capacity(ops)
    return store.apply(ops)


def test_a_queue_holds_no_more_waiting_runs_than_its_bound(store, worker):
    bound(store, 3)
    for _ in range(3):
        enqueue(store, order())

    with pytest.raises(QueueFull) as caught:
        enqueue(store, order())

    assert (caught.value.queue, caught.value.max_size) == ("default", 3)
    enqueue(store, order(queue="other"))
    assert [queue.max_size for queue in store.list_queues()] == [3, None]
    bound(store, None)
    enqueue(store, order())
    acts = [act.act for act in store.list_audit_entries("queue default", 5)]
    assert acts == ["lift max size", "max size 3"]


def test_parked_runs_count_as_waiting_but_running_and_delayed_runs_do_not(store, worker):
    bound(store, 1)
    enqueue(store, order(delay_seconds=60))
    enqueue(store, order())
    held = claim_one(store)
    store.queue_capacity.forget()
    enqueue(store, order())
    succeed(store, held)
    pause(store)
    tick(store)
    store.queue_capacity.forget()

    with pytest.raises(QueueFull):
        enqueue(store, order())


def test_a_call_is_accepted_as_a_whole_or_not_at_all(store, worker):
    bound(store, 3)

    with pytest.raises(QueueFull):
        enqueue(store, *(order() for _ in range(4)), order(queue="other"))

    assert store.count_runs().accepted == 0
    enqueue(store, *(order() for _ in range(3)))


def test_a_full_queue_still_returns_the_run_that_has_the_key(store, worker):
    bound(store, 2)
    (first,) = enqueue(store, order(key="k"))
    enqueue(store, order())

    (again,) = enqueue(store, order(key="k"))

    assert (again.run_id, again.new) == (first.run_id, False)
    with pytest.raises(QueueFull):
        enqueue(store, order(key="other"))
    with pytest.raises(QueueFull):
        enqueue(store, order(key="k"), order())


def test_a_process_notices_enqueues_of_other_processes_within_a_second(
    store, worker, open_another, monkeypatch
):
    now = [1000.0]
    monkeypatch.setattr("duly.store.queue_capacity.monotonic", lambda: now[0])
    other = open_another()
    enqueue(other, order())
    bound(store, 3)
    enqueue_many(store, 5)

    enqueue(other, order())  # It has not read the new number yet.
    now[0] += 5
    with pytest.raises(QueueFull):
        enqueue(other, order())
    for _ in range(5):
        succeed(store, claim(store, 1)[0])
    now[0] += 1
    enqueue(other, order())


def test_sizes_of_queues_without_a_bound_are_read_seldom(store, worker, monkeypatch):
    asked = []
    read = store._read
    monkeypatch.setattr(
        store, "_read", lambda *args, **how: (asked.append(1), read(*args, **how))[1]
    )

    for _ in range(20):
        enqueue(store, order())

    assert len(asked) <= 1

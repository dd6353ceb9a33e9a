"""The costs of tasks' transactions, and of writes on a connection of the caller."""

from contextlib import contextmanager
from functools import partial

from duly.connections import execute_dialogue
from duly.store.ops.operators import SetQueueCapacity
from duly.store.ops.runs import Settled
from duly.store.ops.steps import EndStep, SendEvent
from duly.store.ops.updates import AddLogs, SetProgress
from tests.store.conformance.verbs import ACTOR, another_try, enqueue_one, order, state_of, success
from tests.store.costs.cases import case
from tests.store.costs.run_cases import LINES, held, lost

# -- transactions of tasks --


@contextmanager
def begun(world):
    """Yield a task's transaction without writes, and the claim of its run."""
    found = held(world)
    section = world.store.task_transaction()
    try:
        assert section.connection is not None
        yield section, found
    finally:
        section.rollback()


@case("task_transaction: it begins")
def begin_transaction(world):
    section = world.store.task_transaction()
    assert (yield lambda: section.connection) is not None
    section.rollback()


@case("task_transaction: settle_and_commit, a success")
def settle_and_commit(world):
    with begun(world) as (section, found):
        op = success(found, "1")._replace(keyed=False)
        assert (yield partial(section.settle_and_commit, op)) is Settled.DONE
        assert state_of(world.store, found.run_id) == "succeeded"


@case("task_transaction: settle_and_commit, a success with progress and logs")
def settle_with_log_lines(world):
    with begun(world) as (section, found):
        place = found.run_id, found.claim_number
        words = [AddLogs(*place, LINES), SetProgress(*place, 1.0, "")]
        op = success(found)._replace(keyed=False)
        assert (yield partial(section.settle_and_commit, op, words)) is Settled.DONE


@case("task_transaction: settle_and_commit, another try")
def requeue_and_commit(world):
    with begun(world) as (section, found):
        assert (yield partial(section.settle_and_commit, another_try(found))) is Settled.DONE


@case("task_transaction: settle_and_commit, the claim is lost")
def settle_late(world):
    with begun(world) as (section, found):
        op = success(lost(found))
        assert (yield partial(section.settle_and_commit, op)) is Settled.CLAIM_LOST


@case("task_transaction: record a step")
def record(world):
    with begun(world) as (section, found):
        op = EndStep(found.run_id, found.claim_number, "name", "7")
        assert (yield partial(section.record, op)) is True


@case("task_transaction: record_and_commit a step")
def record_and_commit(world):
    with begun(world) as (section, found):
        op = EndStep(found.run_id, found.claim_number, "name", "7")
        assert (yield partial(section.record_and_commit, op)) is True
        assert world.store.list_steps(found.run_id)[0].done


@case("task_transaction: commit")
def commit(world):
    with begun(world) as (section, _):
        assert (yield section.commit) is None


@case("task_transaction: rollback")
def roll_back(world):
    with begun(world) as (section, _):
        assert (yield section.rollback) is None


# -- transactions of callers --


def enqueue(world, connection, op):
    """Return the function that accepts a run in a transaction of the caller."""
    write = partial(world.store.enqueue_on_connection, op)
    return partial(execute_dialogue, connection, write, partial(world.store.wake, op))


@case("enqueue_on_connection: plain")
def enqueue_plain(world):
    world.store.check_queue_capacity([order()])
    with world.open_transaction() as connection:
        assert (yield enqueue(world, connection, order())).new


@case("enqueue_on_connection: the room in its queue is not known")
def enqueue_unknown_room(world):
    world.apply(SetQueueCapacity("default", 100, ACTOR))
    world.store.queue_capacity.forget()
    with world.open_transaction() as connection:
        assert (yield enqueue(world, connection, order())).new
    world.store.queue_capacity.forget()


@case("enqueue_on_connection: new key")
def enqueue_new_key(world):
    world.store.check_queue_capacity([order()])
    with world.open_transaction() as connection:
        assert (yield enqueue(world, connection, order(key="k"))).new


@case("enqueue_on_connection: known key")
def enqueue_known_key(world):
    known = enqueue_one(world.store, key="k")
    world.store.check_queue_capacity([order()])
    with world.open_transaction() as connection:
        found = yield enqueue(world, connection, order(key="k"))
        assert found == (known, False, False)


def send(world, connection):
    """Return the function that sends an event in a transaction of the caller."""
    write = partial(world.store.send_on_connection, SendEvent("paid", "7"))
    return partial(execute_dialogue, connection, write, world.store.wake)


@case("send_on_connection: new")
def send_new(world):
    with world.open_transaction() as connection:
        assert (yield send(world, connection)) is True


@case("send_on_connection: sent before")
def send_again(world):
    world.apply(SendEvent("paid", "7"))
    with world.open_transaction() as connection:
        assert (yield send(world, connection)) is False


@case("check_queue_capacity: a queue without a bound")
def check_unbounded(world):
    world.store.queue_capacity.forget()
    assert (yield partial(world.store.check_queue_capacity, [order()])) is None
    assert world.store.queue_capacity.fit([order()])


@case("check_queue_capacity: a queue with a bound")
def check_bounded(world):
    world.apply(SetQueueCapacity("default", 100, ACTOR))
    world.store.queue_capacity.forget()
    assert (yield partial(world.store.check_queue_capacity, [order()])) is None
    world.store.queue_capacity.forget()

"""`@exactly_once`: executions of scheduled tasks that begin once, whichever backend brings them."""

import asyncio
import threading
from contextlib import closing

import pytest

from duly import BadOption, Retry
from duly.guard import Guard
from duly.integrations.django import duly_options, exactly_once, scheduled_task
from tests.integrations.django import other, tasks
from tests.integrations.django.api import task
from tests.servers.processes import wait_until

SOON = 20.0
calls: list[object] = []


@task(backend="other")
@exactly_once
def bill(customer: int) -> str:
    calls.append(customer)
    if customer < 0:
        raise ValueError("no such customer")
    return f"billed {customer}"


@task(backend="other")
@exactly_once
async def bill_on_a_loop(customer: int) -> str:
    await asyncio.sleep(0)
    calls.append(customer)
    return f"billed {customer}"


@task(backend="other")
@duly_options(retries=Retry(1, base=0.01), retry_on=(ConnectionError,), redact=("card",))
@exactly_once
def charge(card: str) -> str:
    calls.append(card)
    if len(calls) == 1:
        raise ConnectionError("the bank is away")
    return "charged"


@task(backend="immediate")
@exactly_once
def bill_here(customer: int) -> str:
    calls.append(customer)
    return f"billed {customer}"


@task(backend="other")
@duly_options(redact=("number",))
def remind_by_phone(number: int) -> None:
    calls.append(number)


@task(backend="other")
def remind(customer: int) -> None:
    calls.append(customer)


def bill_by_hand(customer: int) -> str:
    calls.append(customer)
    return f"billed {customer}"


@pytest.fixture(autouse=True)
def _no_calls():
    calls.clear()


def fired(app, chosen, customer) -> other.Delivery:
    """Have a schedule fire once, and return what the other backend was given."""
    scheduled_task(cron="0 0 1 1 *", name="yearly", args=[customer])(chosen)
    with app.worker():
        app.schedules.run_now("yearly")
        wait_until(
            lambda: bool(other.waiting), seconds=SOON, what="the run is waiting to be sent there"
        )
    return other.waiting[0]


@pytest.mark.parametrize("chosen", [bill, bill_on_a_loop], ids=["def", "async def"])
def test_an_execution_that_is_delivered_twice_happens_once(scheduler, chosen):
    delivery = fired(scheduler, chosen, 42)
    assert other.deliver(delivery) == "billed 42"
    assert other.deliver(delivery) is None
    assert calls == [42]
    (run,) = scheduler.runs.list()
    assert run.state == "succeeded"


def test_a_backend_that_runs_it_at_once_does_so_in_the_scheduler(scheduler):
    scheduled_task(cron="0 0 1 1 *", name="yearly", args=[42])(bill_here)
    with scheduler.worker():
        run = scheduler.schedules.run_now("yearly")
        assert run.result(timeout=SOON) == "billed 42"
    assert calls == [42]


def test_of_two_deliveries_at_once_one_runs(scheduler):
    delivery = fired(scheduler, bill, 42)
    threads = [threading.Thread(target=other.deliver, args=(delivery,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert calls == [42]


def test_what_failed_is_told_and_a_delivery_does_not_repeat_it(scheduler):
    delivery = fired(scheduler, bill, -1)
    with pytest.raises(ValueError, match="no such customer") as told:
        other.deliver(delivery)
    assert type(told.value) is ValueError, "the backend that carries it learns what was raised"
    assert told.traceback[-1].name == "bill"
    assert other.deliver(delivery) is None
    assert calls == [-1]
    (run,) = scheduler.dead.list()
    scheduler.dead.retry(run.id, actor="ada")
    assert run.refresh().state == "queued"


def test_options_of_duly_hold_for_what_another_backend_carries(scheduler):
    delivery = fired(scheduler, charge, "4111-2222")
    assert other.deliver(delivery) is None
    (run,) = scheduler.runs.list()
    assert run.state == "queued"

    with scheduler.worker():
        wait_until(
            lambda: len(other.waiting) == 2,
            seconds=SOON,
            what="the run is waiting to be sent there again",
        )
    assert other.deliver(other.waiting[1]) == "charged"

    assert calls == ["4111-2222"] * 2
    assert scheduler.registry.get(run.record.task).redact == ("card",)


def test_secrets_of_a_task_that_is_only_handed_over_are_kept(scheduler):
    fired(scheduler, remind_by_phone, 42)
    (run,) = scheduler.runs.list()
    assert scheduler.registry.get(run.record.task).redact == ("number",)


def test_without_an_execution_the_function_simply_runs(scheduler):
    assert bill.call(1) == "billed 1"
    bill.enqueue(2)
    assert other.deliver(other.waiting[0]) == "billed 2"
    assert calls == [1, 2]
    assert scheduler.runs.list() == []


def test_what_is_enqueued_by_hand_is_done_once_under_a_guard(scheduler, project):
    with closing(Guard(project)) as guard:
        guarded = task(backend="other")(guard.idempotent(bill_by_hand))
        for _ in range(2):
            guarded.enqueue(42)

        assert [other.deliver(delivery) for delivery in other.waiting] == ["billed 42"] * 2
    assert calls == [42]


def test_a_task_without_it_is_handed_over_at_least_once(scheduler):
    delivery = fired(scheduler, remind, 42)
    assert delivery[1:] == ([42], {})


@pytest.mark.stores("sqlite-wal")
def test_the_wrong_order_of_decorators_is_an_error_at_import(scheduler):
    with pytest.raises(BadOption, match="below @task"):
        exactly_once(tasks.add)

"""`@exactly_once`: executions of scheduled tasks that begin once, on every backend."""

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
@duly_options(retries=Retry(1, base=0.01, on=(ConnectionError,)), redact=("card",))
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
    """Fire a schedule once. Return the delivery that the other backend received."""
    scheduled_task(cron="0 0 1 1 *", name="yearly", args=[customer])(chosen)
    with app.worker():
        app.schedules.run_now("yearly")
        wait_until(lambda: bool(other.waiting), seconds=SOON, what="the run is handed over")
    return other.waiting[0]


@pytest.mark.parametrize("chosen", [bill, bill_on_a_loop], ids=["def", "async def"])
def test_an_execution_that_is_delivered_twice_runs_once(scheduler, chosen):
    delivery = fired(scheduler, chosen, 42)
    assert other.deliver(delivery) == "billed 42"
    assert other.deliver(delivery) is None
    assert calls == [42]
    (run,) = scheduler.runs.list()
    assert run.state == "succeeded"


def test_an_immediate_backend_runs_the_task_in_the_scheduler(scheduler):
    scheduled_task(cron="0 0 1 1 *", name="yearly", args=[42])(bill_here)
    with scheduler.worker():
        run = scheduler.schedules.run_now("yearly")
        assert run.result(timeout=SOON) == "billed 42"
    assert calls == [42]


def test_one_of_two_simultaneous_deliveries_runs(scheduler):
    delivery = fired(scheduler, bill, 42)
    threads = [threading.Thread(target=other.deliver, args=(delivery,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert calls == [42]


def test_a_failure_is_raised_and_not_repeated_by_another_delivery(scheduler):
    delivery = fired(scheduler, bill, -1)
    with pytest.raises(ValueError, match="no such customer") as told:
        other.deliver(delivery)
    assert type(told.value) is ValueError, "the backend receives the error that was raised"
    assert told.traceback[-1].name == "bill"
    assert other.deliver(delivery) is None
    assert calls == [-1]
    (run,) = scheduler.dead.list()
    scheduler.dead.retry(run.id, actor="ada")
    assert run.refresh().state == "queued"


def test_duly_options_apply_to_tasks_that_another_backend_carries(scheduler):
    delivery = fired(scheduler, charge, "4111-2222")
    assert other.deliver(delivery) is None
    (run,) = scheduler.runs.list()
    assert run.state == "queued"

    with scheduler.worker():
        wait_until(
            lambda: len(other.waiting) == 2, seconds=SOON, what="the run is handed over again"
        )
    assert other.deliver(other.waiting[1]) == "charged"

    assert calls == ["4111-2222"] * 2
    assert scheduler.registry.get(run.record.task).redact == ("card",)


def test_a_task_that_is_only_handed_over_keeps_its_redacted_parameters(scheduler):
    fired(scheduler, remind_by_phone, 42)
    (run,) = scheduler.runs.list()
    assert scheduler.registry.get(run.record.task).redact == ("number",)


def test_a_call_without_an_execution_runs_the_plain_function(scheduler):
    assert bill.call(1) == "billed 1"
    bill.enqueue(2)
    assert other.deliver(other.waiting[0]) == "billed 2"
    assert calls == [1, 2]
    assert scheduler.runs.list() == []


def test_a_guarded_task_that_is_enqueued_directly_runs_once(scheduler, project):
    with closing(Guard(project)) as guard:
        guarded = task(backend="other")(guard.idempotent(bill_by_hand))
        for _ in range(2):
            guarded.enqueue(42)

        assert [other.deliver(delivery) for delivery in other.waiting] == ["billed 42"] * 2
    assert calls == [42]


def test_a_task_without_exactly_once_is_handed_over_without_an_execution(scheduler):
    delivery = fired(scheduler, remind, 42)
    assert delivery[1:] == ([42], {})


@pytest.mark.stores("sqlite-wal")
def test_the_wrong_order_of_decorators_is_an_error_at_import(scheduler):
    with pytest.raises(BadOption, match="below @task"):
        exactly_once(tasks.add)

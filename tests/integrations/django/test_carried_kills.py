"""Executions that real workers of django-tasks-db and Celery carry, which are killed.

`make test` kills one or two workers of each backend. `make prove` kills many, and saves the
outcome.
"""

import os
import signal
from contextlib import closing
from types import SimpleNamespace

import pytest

from duly import Duly
from tests.integrations.carried_kills import kill_carriers
from tests.integrations.counter import EffectCounter
from tests.integrations.django.carriers import PACKAGES, Carried
from tests.integrations.django.shop import SOON
from tests.integrations.django.test_shop_kills import IS_PROOF, LIBRARIES
from tests.integrations.evidence import KILLS, SECONDS, WHERE, keep
from tests.servers.processes import wait_until

KILLED = KILLS if IS_PROOF else 1

pytestmark = [pytest.mark.process, pytest.mark.untouched, pytest.mark.timeout(SECONDS)]


@WHERE
@pytest.mark.parametrize("kind", ["db", pytest.param("celery", marks=pytest.mark.first_django)])
def test_killed_workers_pay_and_bill_nothing_twice(
    kind, store_url, store_kind, redis_url, counter, tmp_path
):
    pytest.importorskip(PACKAGES[kind].replace("-", "_"))
    places = {"url": store_url, "folder": tmp_path, "redis": redis_url}
    with EffectCounter(tmp_path / "payments") as payments, closing(Duly(store_url)) as seen:
        shop = Carried(kind, **places, payments=payments, bills=counter, orders=2 * KILLED)
        shop.set_up()
        with shop.at_work():
            wait_until(lambda: shop.may_fire(seen), seconds=SOON, what="it may fire")
            pay_twice_and_kill(shop, seen, payments)
            document = bill_and_kill(shop, seen, counter)

    libraries = (*LIBRARIES, PACKAGES[kind], *(["celery"] if kind == "celery" else []))
    keep(f"django-{kind}-kills", store_kind, document, *libraries)
    assert document["broken"] == []
    assert document["kills"] == KILLED
    assert document["attempts_lost"] >= 1


def pay_twice_and_kill(shop: Carried, seen: Duly, payments: EffectCounter) -> None:
    """Deliver two payments twice, kill the worker of one, and resume it as an operator would."""
    runs = [seen.schedules.run_now(f"pay-{order}") for order in range(2)]
    wait_until(lambda: len(payments.at_work()) == 2, seconds=SOON, what="both have begun")
    executions = [f"{run.id}:{run.refresh().record.claim_number - 1}" for run in runs]

    def wait_for_deliveries(*counts: int) -> None:
        wait_until(
            lambda: [len(shop.deliveries(each)) for each in executions] == list(counts),
            seconds=SOON,
            what=f"so many deliveries have ended: {counts}",
        )

    # The one remaining slot runs both, one after the other.
    shop.deliver_again(*executions)
    wait_for_deliveries(1, 1)
    assert len(payments.at_work()) == 2
    shop.open_gate(1)
    wait_for_deliveries(1, 2)
    (victim,) = payments.at_work()
    os.kill(victim, signal.SIGKILL)
    shop.resume(executions[0])
    wait_for_deliveries(2, 2)
    wait_until(lambda: runs[0].refresh().is_final, seconds=SOON, what="the loss is recorded")

    assert [run.refresh().state for run in runs] == ["interrupted", "succeeded"]
    assert payments.count("began") == {"0": 1, "1": 1}
    assert [dead.id for dead in seen.dead.list()] == [runs[0].id]
    shop.open_gate(0)
    runs[0].retry()
    wait_until(lambda: runs[0].refresh().is_final, seconds=SOON, what="the task is done in the end")
    assert payments.count("ended") == {"0": 1, "1": 1}
    ends = shop.deliveries(executions[0])
    assert {status for status, _ in ends} == {"SUCCESSFUL"}
    # Both ended while other tasks waited for the gate, so no execution waits for another. Their
    # speed can be checked only on an idle machine.
    if IS_PROOF:
        assert min(took for _, took in ends) < 0.1


def bill_and_kill(shop: Carried, seen: Duly, counter: EffectCounter) -> dict[str, object]:
    """Bill orders, in rows that commit with their runs, while workers are killed."""
    fired = SimpleNamespace(enqueue=lambda number, _: seen.schedules.run_now(f"bill-{number}"))

    document = kill_carriers(SimpleNamespace(pay=fired), counter, kills=KILLED)

    runs = seen.runs.list(
        task=f"tests.integrations.django.carried.tasks.bill@{shop.kind}", limit=2 * KILLED
    )
    bills = shop.read("SELECT run_id FROM shop_billing")
    if sorted(bills) != sorted(run.id for run in runs):
        document["broken"].append(f"{len(bills)} bills were written by {len(runs)} runs")
    return document | {"bills": len(bills)}

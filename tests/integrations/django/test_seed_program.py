"""`@scheduled_task @task @exactly_once`, moved to duly with messages in the queue, and killed."""

import os
import signal
from contextlib import closing

import pytest

from duly import Duly
from tests.integrations.counter import EffectCounter
from tests.integrations.django.carriers import PACKAGES, Carried
from tests.integrations.django.shop import SOON
from tests.servers.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.untouched, pytest.mark.timeout(600)]

DISPATCHED = 2
IMPORT = ("manage.py", "duly", "import-periodic-tasks")


def test_imported_executions_are_paid_once_although_processes_are_killed(
    store_url, redis_url, counter, tmp_path
):
    pytest.importorskip(PACKAGES["db"].replace("-", "_"))
    places = {"url": store_url, "folder": tmp_path, "redis": redis_url}
    with EffectCounter(tmp_path / "payments") as payments, closing(Duly(store_url)) as seen:
        shop = Carried("db", **places, payments=payments, bills=counter, orders=1)
        shop.set_up()
        shop.manage(
            *("shell", "--command"),
            f"from tests.integrations.django.carried.left import *; leave({DISPATCHED})",
        )
        with shop.running(*IMPORT) as killed, shop.running(*IMPORT):
            os.kill(killed.pid, signal.SIGKILL)
        for _ in range(2):
            shop.manage(*IMPORT[1:])
        states = {each.name: each.state for each in seen.schedules.list()}
        orders = range(DISPATCHED + 1)
        assert states == {
            **{f"old-{order}": "active" for order in orders},
            "pay-0": "paused",
            "bill-0": "active",
            "shop.tasks.nightly_billing": "active",
        }
        assert len(seen.runs.list()) == len(orders)

        with shop.at_work():
            wait_until(
                lambda: len(payments.at_work()) == len(orders), seconds=SOON, what="all have begun"
            )
            victim, order = next(iter(payments.at_work().items()))
            os.kill(victim, signal.SIGKILL)
            for each in orders:
                shop.open_gate(each)
            wait_until(
                lambda: all(run.is_final for run in seen.runs.list()),
                seconds=2 * SOON,
                what="all have ended",
            )
            # Only the second messages are left in the queue.
            wait_until(
                lambda: (
                    not shop.read(
                        "SELECT id FROM django_tasks_database_dbtaskresult WHERE status = 'READY'"
                    )
                ),
                seconds=SOON,
                what="the queue is empty",
            )

        ends = sorted(run.state.value for run in seen.runs.list())
        assert payments.count("began") == {str(each): 1 for each in orders}
        assert payments.count("ended") == {str(each): 1 for each in orders if str(each) != order}
        assert ends == ["interrupted", *["succeeded"] * DISPATCHED]

"""The example's `nightly_billing`, whose database restarts while it runs."""

from contextlib import closing

import pytest

from duly import Duly
from tests.integrations.django.billing import EVERY_SECOND, done, judge, wait_for_instants
from tests.integrations.django.shop import SOON, Shop
from tests.servers.processes import wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.untouched,
    pytest.mark.timeout(600),
    pytest.mark.stores("postgres"),  # SQLite has no server.
]


def test_a_database_restart_loses_no_task_and_no_instant(private_postgres, tmp_path):
    url = private_postgres.create_database()
    shop = Shop(url, tmp_path / "worker.log", SHOP_BILLING=EVERY_SECOND)
    shop.set_up("place_orders", "8", "--seconds", "0.5")
    with closing(Duly(url)) as seen, shop.working("-c", "2"):
        wait_for_instants(seen, 1)
        private_postgres.restart()
        wait_for_instants(seen, len(done(seen)) + 2)
        wait_until(
            lambda: all(run.is_final for run in seen.runs.list(task="shop.tasks.confirm")),
            seconds=SOON,
            what="the orders are confirmed",
        )
        # A task that lost its connection while it ran has failed, and can be retried.
        for run in seen.runs.list(task="shop.tasks.confirm", state="failed"):
            run.retry()
            wait_until(lambda run=run: run.refresh().is_final, seconds=SOON, what="it is confirmed")
        assert judge(shop, seen, lost=True).broken == []
    assert min(shop.read("SELECT confirmations FROM shop_order")) > 0


def test_a_scheduler_fires_every_instant_after_its_database_is_back(private_postgres, tmp_path):
    url = private_postgres.create_database()
    billing = {"SHOP_BILLING": EVERY_SECOND, "SHOP_BILLING_BACKEND": "here"}
    shop = Shop(url, tmp_path / "scheduler.log", **billing)
    shop.set_up()
    with closing(Duly(url)) as seen, shop.running("manage.py", "run_scheduler"):
        wait_for_instants(seen, 1)
        private_postgres.restart()
        wait_for_instants(seen, len(done(seen)) + 2)
        assert judge(shop, seen, lost=True).broken == []

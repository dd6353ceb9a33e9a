"""`examples/django_shop` in real `manage.py` processes."""

import shutil
import time
from contextlib import closing

import pytest

from duly import Duly
from tests.integrations.django.shop import SHOP, SOON, Shop, kill_one
from tests.servers.processes import wait_until

# A dozen processes start one after the other, which takes long on a busy machine.
pytestmark = [pytest.mark.process, pytest.mark.untouched, pytest.mark.timeout(600)]


@pytest.fixture
def shop(store_url, tmp_path):
    return Shop(store_url, tmp_path / "worker.log")


@pytest.mark.stores("sqlite-wal")
def test_a_command_imports_the_tasks_of_all_applications_and_stores_no_schedule(shop, store_url):
    shop.manage("migrate", "--verbosity", "0")
    registry = "from duly.integrations.django import schedule_registry"
    said = shop.manage("shell", "--command", f"{registry}; print(*schedule_registry.get_entries())")

    assert said.splitlines()[-1] == "shop.tasks.nightly_billing"
    with closing(Duly(store_url)) as seen:
        assert list(seen.schedules.list()) == []


def test_a_run_that_may_begin_only_once_is_interrupted_when_its_worker_is_killed(shop, store_url):
    shop.set_up("place_orders", "0", "--held", "1", "--seconds", "60")
    with closing(Duly(store_url)) as seen, shop.working("-c", "2"):
        (run,) = seen.runs.list()
        begun = "SELECT confirmations FROM shop_order"
        wait_until(lambda: shop.read(begun) == [1], seconds=SOON, what="the task has begun")
        kill_one(seen)
        wait_until(lambda: run.refresh().is_final, seconds=SOON, what="the loss is recorded")
        assert (run.state, run.cause) == ("interrupted", "crashed")
        assert [dead.id for dead in seen.dead.list()] == [run.id]
    assert shop.read(begun) == [1]


@pytest.mark.stores("sqlite-wal")
def test_a_development_worker_restarts_when_the_code_changes(store_url, tmp_path):
    folder = tmp_path / "django_shop"
    shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    shop = Shop(store_url, tmp_path / "dev.log", folder)
    shop.set_up()
    tasks = folder / "shop" / "tasks.py"
    with closing(Duly(store_url)) as seen, shop.running("manage.py", "duly", "dev"):

        def results() -> list[object]:
            return sorted(run.result() for run in seen.runs.list() if run.state == "succeeded")

        shop.manage("place_orders", "1")
        wait_until(lambda: len(results()) == 1, seconds=SOON, what="the order is confirmed")
        tasks.write_text(tasks.read_text().replace("return order.email", 'return "changed"'))

        def has_begun_anew() -> bool:
            # Django must have seen the file once before it notices the change.
            tasks.touch()
            time.sleep(1)  # Django checks once a second.
            return len(seen.workers.list()) > 1

        wait_until(has_begun_anew, seconds=SOON, what="a new worker has begun")
        shop.manage("place_orders", "1")
        wait_until(lambda: len(results()) == 2, seconds=SOON, what="the next one is confirmed")
        assert results() == ["changed", "customer-0@example.com"]

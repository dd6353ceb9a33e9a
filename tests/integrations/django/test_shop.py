"""`examples/django_shop` in real `manage.py` processes."""

import os
import shutil
import signal
import threading
from contextlib import closing

import pytest

from duly import Duly
from tests.integrations.django.shop import SHOP, SOON, Shop, running_children
from tests.servers.processes import is_running, wait_until

# A dozen processes begin one after the other, which takes long where many others do.
pytestmark = [pytest.mark.process, pytest.mark.untouched, pytest.mark.timeout(180)]


@pytest.fixture
def shop(store_url, tmp_path):
    shop = Shop(store_url, tmp_path / "worker.log")
    shop.manage("migrate", "--verbosity", "0")
    return shop


@pytest.mark.stores("sqlite-wal")
def test_a_command_meets_the_tasks_of_all_applications_and_schedules_nothing(shop, store_url):
    registry = "from duly.integrations.django import schedule_registry"
    said = shop.manage("shell", "--command", f"{registry}; print(*schedule_registry.get_entries())")

    assert said.splitlines()[-1] == "shop.tasks.nightly_billing"
    with closing(Duly(store_url)) as seen:
        assert list(seen.schedules.list()) == []


def test_what_a_killed_worker_process_had_in_hand_is_done_by_the_next(shop, store_url):
    shop.manage("place_orders", "8", "--once", "4", "--seconds", "0.3")
    with closing(Duly(store_url)) as seen, shop.working("-c", "4", "--drain") as worker:
        wait_until(lambda: bool(running_children(seen)), seconds=SOON, what="a worker runs tasks")
        os.kill(running_children(seen)[0], signal.SIGKILL)
        assert worker.wait(timeout=SOON) == 0
        assert {run.state for run in seen.runs.list()} == {"succeeded"}
        assert len(seen.runs.list()) == 12
        assert len(seen.workers.list()) > 1
    assert "shop.tasks.confirm" in shop.manage("duly", "runs", "list", "--limit", "1")
    counts = "[order.confirmations for order in Order.objects.order_by('pk')]"
    confirmed = [int(text) for text in shop.ask(counts).strip("[]").split(", ")]
    assert min(confirmed[:8]) >= 1
    assert confirmed[8:] == [1, 1, 1, 1]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_kill_9_in_the_midst_of_200_tasks_loses_none(shop, store_url):
    shop.manage("place_orders", "150", "--once", "50", "--seconds", "0.1")
    with closing(Duly(store_url)) as seen:
        for _ in range(2):
            with shop.working("-c", "4", "--processes", "2") as worker:
                for _ in range(4):
                    kill_one(seen)
                # The last is the keeper itself, over the heads of its children.
                worker.kill()
                worker.wait(timeout=SOON)
        # No more of them: a run that was alone in three processes that died is called a poison.
        with shop.working("-c", "4"):
            wait_until(
                lambda: all(run.is_final for run in seen.runs.list(limit=200)),
                seconds=300,
                what="all are done, those of the last keeper once its lease is over",
            )
        assert {run.state for run in seen.runs.list(limit=200)} == {"succeeded"}
        assert len(seen.runs.list(limit=200)) == 200
    assert shop.ask("Order.objects.filter(confirmations=0).count()") == "0"
    assert shop.ask("Order.objects.filter(pk__gt=150).exclude(confirmations=1).count()") == "0"


def kill_one(seen: Duly) -> None:
    """Kill a process that runs tasks, and wait until it is gone."""
    wait_until(lambda: bool(running_children(seen)), seconds=SOON, what="a worker runs tasks")
    victim = running_children(seen)[0]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not is_running(victim), seconds=SOON, what="it is gone")


@pytest.mark.stores("sqlite-wal")
def test_a_worker_in_development_begins_anew_when_the_code_changes(store_url, tmp_path):
    folder = tmp_path / "django_shop"
    shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    shop = Shop(store_url, tmp_path / "dev.log", folder)
    shop.manage("migrate", "--verbosity", "0")
    tasks = folder / "shop" / "tasks.py"
    with closing(Duly(store_url)) as seen, shop.running("manage.py", "duly", "dev"):

        def results() -> list[object]:
            return sorted(run.result() for run in seen.runs.list() if run.state == "succeeded")

        shop.manage("place_orders", "1")
        wait_until(lambda: len(results()) == 1, seconds=SOON, what="the order is confirmed")
        tasks.write_text(tasks.read_text().replace("return order.email", 'return "changed"'))
        # Django has to have seen the file once before it sees that it changed.
        touching = threading.Timer(3.0, os.utime, [tasks])
        touching.start()
        wait_until(
            lambda: len(seen.workers.list()) > 1, seconds=SOON, what="a new worker has begun"
        )
        touching.join()
        shop.manage("place_orders", "1")
        wait_until(lambda: len(results()) == 2, seconds=SOON, what="the next one is confirmed")
    assert results() == ["changed", "customer-0@example.com"]

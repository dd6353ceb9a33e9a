"""`examples/django_shop` in real `manage.py` processes."""

import os
import shutil
import signal
import threading
from contextlib import closing, suppress

import pytest

from duly import Duly
from tests.integrations.django.shop import SHOP, SOON, Shop, running_children
from tests.servers.processes import wait_until

# A dozen processes begin one after the other, which takes long where many others do.
pytestmark = [pytest.mark.process, pytest.mark.untouched, pytest.mark.timeout(180)]


@pytest.fixture
def shop(store_url, tmp_path):
    shop = Shop(store_url, tmp_path / "worker.log")
    shop.manage("migrate", "--verbosity", "0")
    return shop


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
    kills = 0
    with closing(Duly(store_url)) as seen:
        is_left = True
        while is_left:
            with shop.working("-c", "4", "--processes", "2", "--drain") as worker:
                # Of every five kills one is of the keeper itself, over the heads of its children.
                for turn in range(5):
                    wait_until(
                        lambda: bool(running_children(seen)) or worker.poll() is not None,
                        seconds=SOON,
                        what="a worker runs tasks, or all are done",
                    )
                    if worker.poll() is not None:
                        break
                    victims = running_children(seen)
                    victim = worker.pid if turn == 4 or not victims else victims[0]
                    with suppress(ProcessLookupError):  # Nobody has noticed yet that it is dead.
                        os.kill(victim, signal.SIGKILL)
                        kills += 1
                worker.wait(timeout=SOON)
            is_left = any(not run.is_final for run in seen.runs.list(limit=200))
        assert {run.state for run in seen.runs.list(limit=200)} == {"succeeded"}
        assert len(seen.runs.list(limit=200)) == 200
    assert kills > 5
    assert shop.ask("Order.objects.filter(confirmations=0).count()") == "0"
    assert shop.ask("Order.objects.filter(pk__gt=150).exclude(confirmations=1).count()") == "0"


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

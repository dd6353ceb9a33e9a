"""`nightly_billing` of the example: once per due instant, whoever fires it, whatever restarts."""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from duly import Duly
from tests.integrations.django.shop import SOON, Shop
from tests.servers.processes import children_of, free_port, wait_until

pytestmark = [pytest.mark.process, pytest.mark.untouched, pytest.mark.timeout(180)]
NAME = "shop.tasks.nightly_billing"
EVERY_SECOND = "* * * * * *"


def billed(shop: Shop) -> list[str]:
    return shop.ask("' '.join(Billing.objects.values_list('run_id', flat=True))").split()


def done(seen: Duly) -> list[str]:
    """Return the runs of instants that have succeeded."""
    fired = [fired.run_id for fired in seen.schedules.firings(NAME, limit=200) if fired.run_id]
    return [run_id for run_id in fired if seen.runs.get(run_id).state == "succeeded"]


def wait_for_instants(seen: Duly, count: int) -> None:
    def is_done() -> bool:
        known = [schedule.name for schedule in seen.schedules.list()]
        return NAME in known and len(done(seen)) >= count

    wait_until(is_done, seconds=SOON + count, what=f"{count} instants are billed")


def check_once_each(shop: Shop, seen: Duly, instants: int) -> None:
    finished = done(seen)
    bills = billed(shop)
    fired = {fired.run_id for fired in seen.schedules.firings(NAME, limit=200)}
    assert len(bills) == len(set(bills))
    assert len(bills) >= instants
    # None is missing of those that were said to be done, and none was billed beside them.
    assert set(finished) <= set(bills) <= fired


def deliver_again(redis_url: str) -> int:
    """Have RQ deliver a second time all that it has delivered."""
    import redis  # noqa: PLC0415 - where there is an RQ
    from rq import Queue  # noqa: PLC0415
    from rq.job import Job  # noqa: PLC0415

    with closing(redis.Redis.from_url(redis_url)) as client:
        queue = Queue("default", connection=client)
        job_ids: Sequence[str] = queue.finished_job_registry.get_job_ids()
        for job_id in job_ids:
            queue.enqueue_job(Job.fetch(job_id, connection=client))
        wait_until(
            lambda: queue.count == 0 and queue.started_job_registry.count == 0,
            seconds=SOON,
            what="all are delivered again",
        )
        return len(job_ids)


@pytest.mark.stores("postgres")
def test_four_web_processes_and_two_schedulers_bill_each_night_once(store_url, redis_url, tmp_path):
    bill_by_rq(store_url, redis_url, tmp_path, instants=2)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_they_do_for_sixty_nights(store_url, redis_url, tmp_path):
    bill_by_rq(store_url, redis_url, tmp_path, instants=60)


def bill_by_rq(store_url: str, redis_url: str, tmp_path: Path, *, instants: int) -> None:
    """Have RQ carry the billing that many processes fire, and deliver all of it twice."""
    pytest.importorskip("django_tasks_rq", reason="it needs the backport of Django's tasks")
    pytest.importorskip("gunicorn")
    shop = Shop(store_url, tmp_path / "shop.log", SHOP_BILLING=EVERY_SECOND, SHOP_REDIS=redis_url)
    shop.manage("migrate", "--verbosity", "0")
    port = free_port()
    web = ("-m", "gunicorn", "-w", "4", "--preload", "-b", f"127.0.0.1:{port}", "shop.wsgi")
    rq = ("manage.py", "rqworker", "default", "--job-class", "django_tasks_rq.Job")
    with closing(Duly(store_url)) as seen, ExitStack() as processes:
        schedulers = [
            processes.enter_context(shop.running("manage.py", "run_scheduler")) for _ in range(2)
        ]
        server = processes.enter_context(shop.running(*web))
        processes.enter_context(shop.running(*rq))
        wait_for_instants(seen, 1)
        ask_until_all_fire(seen, port, lambda: set(children_of(server.pid)))
        os.kill(schedulers[0].pid, signal.SIGKILL)
        wait_for_instants(seen, instants)
        assert deliver_again(redis_url) >= 1
        check_once_each(shop, seen, instants)


def ask_until_all_fire(seen: Duly, port: int, children: Callable[[], set[int]]) -> None:
    """Send requests until each web process had its first, with which it begins to fire."""

    def are_all_firing() -> bool:
        with closing(HTTPConnection("127.0.0.1", port, timeout=SOON)) as client:
            client.request("GET", "/nosuch")
            client.getresponse()
        live = {worker.pid for worker in seen.workers.list() if worker.state == "live"}
        return len(children()) == 4 and children() <= live

    wait_until(are_all_firing, seconds=SOON, what="four web processes fire")


@pytest.mark.stores("postgres")
def test_a_server_that_restarts_loses_no_task_and_no_night(private_postgres, tmp_path):
    url = private_postgres.create_database()
    shop = Shop(url, tmp_path / "worker.log", SHOP_BILLING=EVERY_SECOND)
    shop.manage("migrate", "--verbosity", "0")
    shop.manage("place_orders", "8", "--seconds", "0.5")
    with closing(Duly(url)) as seen, shop.working("-c", "2"):
        wait_for_instants(seen, 1)
        private_postgres.restart()
        before = len(done(seen))
        wait_for_instants(seen, before + 2)
        wait_until(
            lambda: all(run.is_final for run in seen.runs.list(task="shop.tasks.confirm")),
            seconds=SOON,
            what="the orders are confirmed",
        )
        # A body that lost its connection in the midst has failed, and is there to be driven again.
        for run in seen.runs.list(task="shop.tasks.confirm", state="failed"):
            run.retry()
            wait_until(lambda run=run: run.refresh().is_final, seconds=SOON, what="it is confirmed")
        check_once_each(shop, seen, before + 2)
    assert shop.ask("Order.objects.filter(confirmations=0).count()") == "0"

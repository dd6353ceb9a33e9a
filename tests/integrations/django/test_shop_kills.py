"""The example shop under load: killed workers and schedulers miss no instant.

`make test` runs a part of the full `make prove`, which saves the outcome.
"""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import django
import pytest

from duly import Duly
from tests.integrations.django.billing import Billed, judge, wait_for_all, wait_for_instants
from tests.integrations.django.shop import SOON, Shop, kill_one
from tests.integrations.evidence import KILLS_VARIABLE, keep
from tests.servers.processes import children_of, free_port, wait_until

IS_PROOF = KILLS_VARIABLE in os.environ
ORDERS, ONCE, SECONDS = (150, 50, 0.1) if IS_PROOF else (6, 2, 1.0)
SUPERVISORS = 2 if IS_PROOF else 0
"""The number of supervisors killed while their children run. Each needs a lease to expire."""
NIGHTS, EVERY = (60, 5) if IS_PROOF else (2, 2)
"""The number of instants, and the seconds between them: RQ should keep up on a busy machine."""
LIBRARIES = ["django"] if django.VERSION >= (6,) else ["django", "django-tasks"]

pytestmark = [pytest.mark.process, pytest.mark.untouched, pytest.mark.timeout(1800)]


def test_workers_that_are_killed_while_they_run_tasks_lose_no_task(store_url, store_kind, tmp_path):
    shop = Shop(store_url, tmp_path / "worker.log")
    shop.set_up("place_orders", str(ORDERS), "--once", str(ONCE), "--seconds", str(SECONDS))
    kills = 0
    with closing(Duly(store_url)) as seen:
        for _ in range(SUPERVISORS):
            with shop.working("-c", "4", "--processes", "2") as worker:
                for _ in range(4):
                    kill_one(seen)
                worker.kill()
                worker.wait(timeout=SOON)
                kills += 5
        # No more than this: a run that was alone in three processes that died is a poison run.
        with shop.working("-c", "2"):
            if not SUPERVISORS:
                kill_one(seen, after=SECONDS / 2)
                kills += 1
            wait_until(
                lambda: all(run.is_final for run in seen.runs.list(limit=200)),
                seconds=300,
                what="all are done, including the tasks whose supervisor was killed",
            )
        runs = seen.runs.list(limit=200)
        lost = sum(attempt.outcome == "lost" for run in runs for attempt in run.attempts())
    confirmed = shop.read("SELECT confirmations FROM shop_order ORDER BY id")

    succeeded = sum(run.state == "succeeded" for run in runs)
    broken = []
    if succeeded != ORDERS + ONCE:
        broken.append(f"{ORDERS + ONCE - succeeded} tasks did not succeed")
    if min(confirmed) < 1:
        broken.append(f"{confirmed.count(0)} orders were never confirmed")
    if max(confirmed[ORDERS:]) > 1:
        broken.append("an order whose row commits with its task was confirmed twice")
    told = {
        "tasks": ORDERS + ONCE,
        "kills": kills,
        "attempts_lost": lost,
        "succeeded": succeeded,
        "confirmations": sum(confirmed),
        "broken": broken,
    }
    keep("django-kills", store_kind, told, *LIBRARIES)
    assert broken == []
    assert lost >= 1, "no worker was killed while it ran a task"


@pytest.mark.first_django
def test_four_web_processes_and_two_schedulers_bill_each_night_once(
    store_url, store_kind, redis_url, tmp_path
):
    pytest.importorskip("django_tasks_rq", reason="it needs the backport of Django's tasks")
    pytest.importorskip("gunicorn")

    told = bill_by_rq(store_url, redis_url, tmp_path)

    keep("django-billing", store_kind, told, *LIBRARIES, "django-tasks-rq", "rq")
    assert told.broken == []
    assert told.delivered_again >= NIGHTS
    assert told.instants == told.runs == told.succeeded == told.bills >= NIGHTS


def bill_by_rq(store_url: str, redis_url: str, tmp_path: Path) -> Billed:
    """Let RQ carry the billing that many processes fire, and deliver each run twice."""
    cron = f"* * * * * */{EVERY}"
    shop = Shop(store_url, tmp_path / "shop.log", SHOP_BILLING=cron, SHOP_REDIS=redis_url)
    shop.set_up()
    port = free_port()
    web = ("-m", "gunicorn", "-w", "4", "--preload", "-b", f"127.0.0.1:{port}", "shop.wsgi")
    rq = ("manage.py", "rqworker", "default", "--job-class", "django_tasks_rq.Job")
    with closing(Duly(store_url)) as seen, ExitStack() as processes:
        processes.enter_context(shop.running(*rq))
        server = processes.enter_context(shop.running(*web))
        schedulers = [
            processes.enter_context(shop.running("manage.py", "run_scheduler")) for _ in range(2)
        ]
        wait_for_instants(seen, 1)
        ask_until_all_fire(seen, port, lambda: set(children_of(server.pid)))
        os.kill(schedulers[0].pid, signal.SIGKILL)
        wait_for_instants(seen, NIGHTS, every=EVERY)
        again = deliver_again(redis_url)
        told = judge(shop, seen, every=EVERY, first=wait_for_all(seen))
    told.schedulers_killed, told.delivered_again = 1, again
    return told


def deliver_again(redis_url: str) -> int:
    """Let RQ deliver a second time every job that it has delivered."""
    import redis  # noqa: PLC0415 - where there is an RQ
    from rq import Queue  # noqa: PLC0415
    from rq.job import Job  # noqa: PLC0415

    with closing(redis.Redis.from_url(redis_url)) as client:
        queue = Queue("default", connection=client)
        finished = queue.finished_job_registry
        # A run has ended a little before RQ has recorded the end of its job.
        wait_until(lambda: finished.count >= NIGHTS, seconds=SOON, what="RQ has finished the jobs")
        job_ids: Sequence[str] = finished.get_job_ids()
        for job_id in job_ids:
            queue.enqueue_job(Job.fetch(job_id, connection=client))

        def under_way() -> set[str]:
            return {*queue.get_job_ids(), *queue.started_job_registry.get_job_ids()}

        wait_until(
            lambda: not under_way() & set(job_ids),
            seconds=3 * SOON + 5 * len(job_ids),
            what="all are delivered again",
        )
        return len(job_ids)


def ask_until_all_fire(seen: Duly, port: int, children: Callable[[], set[int]]) -> None:
    """Send requests until each web process has had its first one and fires schedules."""

    def are_all_firing() -> bool:
        try:
            with closing(HTTPConnection("127.0.0.1", port, timeout=SOON)) as client:
                client.request("GET", "/nosuch")
                client.getresponse()
        except OSError:
            return False  # The server does not listen yet, or timed out on a busy machine.
        live = {worker.pid for worker in seen.workers.list() if worker.state == "live"}
        return len(children()) == 4 and children() <= live

    wait_until(are_all_firing, seconds=3 * SOON, what="four web processes fire")

"""Named queues: limits that also hold for requeued tasks, and a limit of waiting tasks."""

import threading
import time
from itertools import pairwise

import pytest
from fastapi.testclient import TestClient

from duly import BadOption
from duly.compat.fastapi_taskflow import QueueConfig, QueueFullError
from duly.observe.logs import log_notice
from tests.compat.fastapi_taskflow.conftest import adding, serving
from tests.servers.processes import wait_until

SOON = 20.0


class Gauge:
    """A counter of the tasks that run at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = self.total = 0

    def __enter__(self) -> None:
        with self._lock:
            self.inside += 1
            self.total += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


def test_requeued_tasks_respect_the_limit_of_their_queue(manager_of):
    """The tasks that three managers left waiting all run at the next start."""
    gauge = Gauge()
    queues = {"reports": QueueConfig(concurrency=4)}

    def define(manager):
        @manager.task(name="report", queue="reports")
        def report(number: int) -> int:
            with gauge:
                time.sleep(0.001)
            return number

        return report

    ids = set()
    for _ in range(3):
        manager = manager_of(queues=queues, requeue_pending=True)
        report = define(manager)
        with serving(manager):
            manager.duly.queues.pause("reports")
            ids |= {adding(manager).add_task(report, number) for number in range(40)}
    last = manager_of(queues=queues, requeue_pending=True)
    define(last)
    last.duly.queues.resume("reports")
    with serving(last):
        wait_until(lambda: gauge.total == 120, seconds=SOON, what="all run")
    assert gauge.most <= 4
    assert {run.id for run in last.duly.runs.list(state="succeeded", limit=200)} == ids


def test_a_queue_that_is_no_longer_configured_is_served_like_the_default(manager_of):
    old = manager_of(queues={"legacy": QueueConfig()}, requeue_pending=True)
    new = manager_of(queues={"mail": QueueConfig()}, requeue_pending=True)

    @old.task(name="one", queue="legacy")
    def one() -> int:
        return 1

    with serving(old):
        old.duly.queues.pause("legacy")
        task_id = adding(old).add_task(one)
    new.task(name="one")(one)
    new.duly.queues.resume("legacy")
    with serving(new):
        assert new.duly.runs.get(task_id).result(timeout=SOON) == 1


def test_a_full_queue_accepts_only_eager_tasks(manager_of):
    manager = manager_of(queues={"mail": QueueConfig(max_size=2)}, max_size=1)

    @manager.task(name="mail", queue="mail")
    def mail() -> None: ...

    @manager.task(name="other")
    def other() -> None: ...

    with serving(manager):
        for queue in ("mail", "default"):
            manager.duly.queues.pause(queue)
        tasks = adding(manager)
        first = tasks.add_task(mail, idempotency_key="first")
        tasks.add_task(mail)
        assert tasks.add_task(mail, idempotency_key="first") == first  # Already queued.
        with pytest.raises(QueueFullError, match="'mail'"):
            tasks.add_task(mail)
        tasks.add_task(other)
        with pytest.raises(RuntimeError, match="'default'"):
            tasks.add_task(other)
        tasks.add_task(mail, eager=True)
        shown = {queue["name"]: queue for queue in manager.queue_stats()}
    assert (shown["mail"]["pending"], shown["mail"]["rejected"]) == (3, 1)
    assert (shown["default"]["pending"], shown["default"]["max_size"]) == (1, 1)


@pytest.mark.stores("sqlite-wal")
def test_an_unknown_queue_is_the_default_one_and_the_log_says_so(manager_of, caplog):
    """A Python warning would be an error where warnings are errors, and no task would run then."""
    log_notice.cache_clear()
    manager = manager_of(queues={"mail": QueueConfig()})

    @manager.task(name="one")
    def one() -> None: ...

    with serving(manager):
        task_id = adding(manager).add_task(one, queue="male")
    assert "there is no queue 'male'" in caplog.text
    assert manager.store.get(task_id).queue == "default"


def test_a_limit_that_is_changed_holds_at_once(manager_of):
    opened, gauge = threading.Event(), Gauge()
    manager = manager_of(queues={"mail": QueueConfig(concurrency=1)})

    @manager.task(name="mail", queue="mail")
    def mail() -> None:
        with gauge:
            opened.wait(SOON)

    with serving(manager):
        for _ in range(3):
            adding(manager).add_task(mail)
        wait_until(lambda: gauge.inside == 1, seconds=SOON, what="one runs")
        changed = manager.update_queue_config("mail", concurrency=2, max_size=9)
        wait_until(lambda: gauge.inside == 2, seconds=SOON, what="two run")
        assert (changed["concurrency"], changed["max_size"]) == (2, 9)
        with pytest.raises(KeyError, match="there is no queue 'male'"):
            manager.update_queue_config("male", None, None)
        opened.set()
        wait_until(lambda: gauge.total == 3, seconds=SOON, what="all run")
    assert gauge.most == 2


@pytest.mark.stores("sqlite-wal")
def test_impossible_limits_are_refused(manager_of):
    with pytest.raises(BadOption, match="concurrency"):
        QueueConfig(concurrency=0)
    for size in (-1, 10_001):
        with pytest.raises(BadOption, match="max_size"):
            manager_of(max_size=size)
    for queues in ({"mail": 5}, {"mail:5": QueueConfig()}, ["mail"]):
        with pytest.raises(BadOption, match="queue"):
            manager_of(queues=queues)
    for limit in ("max_process_workers", "max_sync_threads", "max_concurrent_tasks"):
        with pytest.raises(BadOption, match="at least 1"):
            manager_of(**{limit: 0})


def test_higher_priorities_go_first(manager_of):
    order = []
    manager = manager_of(queues={"mail": QueueConfig(concurrency=1)})

    @manager.task(name="mail", queue="mail", priority=5)
    def mail(which: str) -> None:
        order.append(which)

    with serving(manager):
        manager.duly.queues.pause("mail")
        for which, priority in (("low", 1), ("middle", None), ("high", 9)):
            adding(manager).add_task(mail, which, priority=priority)
        manager.duly.queues.resume("mail")
        wait_until(lambda: len(order) == 3, seconds=SOON, what="all run")
    assert order == ["high", "middle", "low"]


@pytest.mark.process
@pytest.mark.stores("sqlite-wal")
def test_tasks_in_processes_respect_their_limit_and_keep_their_log_lines(monkeypatch, store_url):
    """Tasks run one at a time, each in a new process, which takes a second to start."""
    monkeypatch.setenv("SHOP_URL", store_url)
    from tests.compat.fastapi_taskflow import shop  # noqa: PLC0415 - it reads the environment

    shop.manager.duly.use_url(store_url)
    with serving(shop.manager):
        ids = [adding(shop.manager).add_task(shop.render, page) for page in range(3)]
        results = [shop.manager.duly.runs.get(task).result(timeout=40) for task in ids]
    spans = sorted((began, ended) for _, began, ended in results)
    assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))
    assert shop.manager.store.get(ids[1]).logs[0].endswith("page 1")
    shop.manager.duly.close()


def test_a_client_can_be_used_again_after_a_restart_in_one_process(manager):
    """As in test suites, and in servers that reload."""
    ran = []

    @manager.task(name="one")
    def one() -> None:
        ran.append(1)

    client: TestClient = serving(manager)
    for number in (1, 2):
        with client:
            adding(manager).add_task(one)
            wait_until(lambda number=number: len(ran) == number, seconds=SOON, what="the task ran")

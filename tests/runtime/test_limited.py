"""Workers keep limits of tasks, of keys and of queues, and lose no time over them."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from duly import BadOption, Duly, faultpoints
from duly.clock import monotonic
from duly.runtime.upkeep import Promoter

HURRY = 20


class Gauge:
    """Counts what runs at once, by name, and remembers the most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    @contextmanager
    def one(self, name: str = "") -> Iterator[None]:
        with self._lock:
            self._now[name] += 1
            self.most[name] = max(self.most[name], self._now[name])
        try:
            yield
        finally:
            with self._lock:
                self._now[name] -= 1


@pytest.fixture
def app(store_url: str) -> Iterator[Duly]:
    """An application on a fresh store."""
    app = Duly(store_url)
    yield app
    app.close()


@pytest.fixture
def other(store_url: str, app: Duly) -> Iterator[Duly]:
    """The same application, as another process has it."""
    other = Duly(store_url)
    other.registry = app.registry
    yield other
    other.close()


def test_two_workers_run_no_more_of_a_task_than_its_limit_and_wait_for_no_poll(app, other):
    gauge = Gauge()

    @app.task(name="limited", limit=2)
    def limited() -> None:
        with gauge.one():
            threading.Event().wait(0.01)

    @app.task(name="free")
    def free() -> None: ...

    began = monotonic()
    runs = app.enqueue_many([limited.call() for _ in range(40)] + [free.call() for _ in range(40)])
    with app.worker(), other.worker():
        for run in runs:
            run.result(timeout=HURRY)

    assert gauge.most[""] == 2
    # Twenty turns of two: with a poll of a second between them it would be twenty seconds.
    assert monotonic() - began < HURRY / 2


def test_each_key_has_its_own_limit_on_the_loop_too(app):
    gauge = Gauge()

    @app.task(name="of_tenant", limit=1, limit_key=lambda tenant, *_: tenant)
    async def of_tenant(tenant: str, number: int) -> None:
        with gauge.one(tenant), gauge.one():
            await asyncio.sleep(0.01)

    calls = [of_tenant.call(tenant, number) for tenant in ("ann", "bob") for number in range(8)]
    app.enqueue_many(calls)
    app.worker().drain(timeout=HURRY)

    assert (gauge.most["ann"], gauge.most["bob"]) == (1, 1)
    assert {run.state for run in app.runs.list()} == {"succeeded"}


def test_a_limit_key_is_given_the_arguments_in_their_order_however_they_are_named(app):
    @app.task(name="of_tenant", limit=1, limit_key=lambda tenant, *_: tenant)
    def of_tenant(tenant: str, number: int = 0, other: int = 0) -> None: ...

    @app.task(name="of_nobody", limit=1, limit_key=lambda tenant, *_: tenant)
    def of_nobody(number: int, *, tenant: str) -> None: ...

    calls = [of_tenant.call("ann", 1), of_tenant.call(tenant="ann"), of_tenant.call("ann", other=2)]

    assert len({call.op.lane for call in calls}) == 1
    with pytest.raises(BadOption, match="limit_key of task 'of_nobody' cannot be called"):
        of_nobody.enqueue(1, tenant="ann")


def test_a_queue_with_a_limit_that_was_set_under_way_is_worked_off(app, other):
    gauge = Gauge()

    @app.task(name="work", queue="mail")
    def work() -> None:
        with gauge.one():
            threading.Event().wait(0.01)

    app.queues.limit("mail", 2)
    runs = app.enqueue_many([work.call() for _ in range(40)])
    began = monotonic()
    with app.worker(), other.worker():
        for run in runs:
            run.result(timeout=HURRY)

    assert gauge.most[""] == 2
    assert monotonic() - began < HURRY / 2


def test_what_is_limited_does_not_starve_behind_what_is_not(app):
    order = []

    @app.task(name="free")
    def free() -> None:
        order.append("free")

    @app.task(name="limited", limit=1)
    def limited() -> None:
        order.append("limited")

    app.enqueue_many([free.call() for _ in range(40)] + [limited.call()])
    app.worker(concurrency=1).drain(timeout=HURRY)

    assert len(order) == 41
    assert order.index("limited") < 30


def test_why_names_the_limit_and_who_holds_it(app):
    begun, end = threading.Event(), threading.Event()

    @app.task(name="stay", limit=1, limit_key=str)
    def stay(tenant: str) -> None:
        begun.set()
        end.wait(HURRY)

    with app.worker():
        first = stay.enqueue("ann")
        assert begun.wait(HURRY)
        second = stay.enqueue("ann")
        of_task = second.why()
        app.queues.limit("default", 1)
        of_queue = stay.enqueue("bob").why()
        end.set()
        second.result(timeout=HURRY)

    assert of_task.cause == of_queue.cause == "limit"
    assert f"'stay' and key 'ann' is full: 1 of 1 are running, run {first.id}" in str(of_task)
    assert "queue 'default' is full: 1 of 1" in str(of_queue)


def test_a_schedule_and_a_retry_wait_under_the_limit_of_their_key(app):
    @app.task(name="send", limit=3, limit_key=lambda tenant: tenant)
    def send(tenant: str) -> None: ...

    app.schedules.add("hourly", send, every=3600, args=("ann",))
    run = app.schedules.run_now("hourly")
    app.worker().drain(timeout=HURRY)
    again = run.retry().record.lane
    app.worker().drain(timeout=HURRY)
    edited = run.retry(arguments=(("bob",), {})).record.lane

    assert (again, edited) == ("~send ann thread", "~send bob thread")


def test_draining_does_not_end_before_a_run_that_has_just_become_due(app, monkeypatch):
    @app.task(name="send", limit=1, limit_key=lambda tenant: tenant)
    def send(tenant: str) -> None: ...

    # So that the look for what is left is the one that finds it due.
    monkeypatch.setattr(Promoter, "tick", lambda _promoter: 60.0)
    run = send.enqueue("ann")
    app.worker().drain(timeout=HURRY)
    run.retry()
    app.worker().drain(timeout=HURRY)

    assert run.refresh().state == "succeeded"


@pytest.mark.stores("postgres")
def test_draining_does_not_end_before_a_run_that_was_locked_for_a_moment(app, store_url):
    @app.task(name="send", limit=1, limit_key=lambda tenant: tenant)
    def send(tenant: str) -> None: ...

    run = send.enqueue("ann")
    with psycopg.connect(store_url) as somebody:
        somebody.execute("SELECT 1 FROM duly_runs WHERE id = %s FOR UPDATE", [run.id])
        faultpoints.arm("claim.after_commit", somebody.rollback)
        app.worker().drain(timeout=HURRY)

    assert run.refresh().state == "succeeded"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 0}, "at least 1"),
        ({"limit": True}, "at least 1"),
        ({"limit_key": str}, "give limit too"),
    ],
)
def test_what_is_no_limit_is_refused(options, words):
    with pytest.raises(BadOption, match=words):
        Duly("sqlite://").task(**options)(lambda: None)


def test_a_key_that_is_no_text_is_refused_at_the_call(app):
    @app.task(name="send", limit=1, limit_key=lambda number: number)
    def send(number: int) -> None: ...

    with pytest.raises(BadOption, match="limit_key must return a text"):
        send.enqueue(3)
    with pytest.raises(BadOption, match="at least 1"):
        app.queues.limit("default", 0)
    assert app.runs.list() == []

"""Workers keep limits of tasks, of keys and of queues, and lose no time over them."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from duly import BadOption, Duly, RetryAfter, Run, faultpoints
from duly.clock import monotonic, new_id
from duly.limits import CLAIM_BATCH, LIMITS_BATCH, POLL_SECONDS
from duly.store.ops.upkeep import RegisterWorker
from duly.worker.claim_policy import QueueLimit
from duly.worker.claimer import Claimer
from duly.worker.inflight import LOOP, THREAD, InFlightClaims
from duly.worker.inline_worker import InlineWorker
from duly.worker.services import maintenance
from duly.worker.services.maintenance import Promoter
from duly.worker.start_marks import StartMarks
from duly.worker.worker import Worker

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
    assert f"'stay' and key 'ann' is full: 1 of 1 are running: run {first.id}" in str(of_task)
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


@pytest.fixture
def deaf(monkeypatch) -> None:
    """Workers that hear of nothing, and poll often instead."""
    monkeypatch.setattr(Worker, "_hint", lambda _worker: None)
    monkeypatch.setattr(maintenance, "_IDLE_PAUSE", 0.2)


@pytest.mark.pgbouncer
@pytest.mark.usefixtures("deaf")
def test_a_run_of_which_no_hint_tells_is_found_by_the_poll(app, other):
    @app.task(name="send", limit=1)
    def send() -> str:
        return "sent"

    with app.worker():
        assert send.enqueue().result(timeout=HURRY) == "sent"
        (run,) = other.enqueue_many([send.call()])

        assert run.result(timeout=HURRY) == "sent"


@pytest.mark.usefixtures("deaf")
def test_runs_of_a_queue_that_goes_on_are_found_by_the_poll(app, other):
    @app.task(name="send", limit=1, limit_key=str)
    def send(tenant: str) -> str:
        return tenant

    app.queues.pause("default")
    runs = [send.enqueue(tenant) for tenant in ("ann", "bob")]
    looked = threading.Event()
    faultpoints.arm("claim.after_commit", looked.set)
    with app.worker():
        assert looked.wait(HURRY)
        other.queues.resume("default")

        assert [run.result(timeout=HURRY) for run in runs] == ["ann", "bob"]


@pytest.mark.stores("postgres")
@pytest.mark.usefixtures("deaf")
def test_a_run_that_was_locked_when_it_was_looked_for_is_found_by_the_poll(app, store_url):
    @app.task(name="send", limit=1)
    def send() -> str:
        return "sent"

    run = send.enqueue()
    with psycopg.connect(store_url) as somebody:
        somebody.execute("SELECT 1 FROM duly_runs WHERE id = %s FOR UPDATE", [run.id])
        faultpoints.arm("claim.after_commit", somebody.rollback)
        with app.worker():
            assert run.result(timeout=HURRY) == "sent"


@pytest.fixture
def behind_many(app: Duly, store_url: str) -> Run[str]:
    """A run under a limit behind those of many keys that no worker of ours can serve."""
    send = app.task(name="send", limit=1, limit_key=str)(lambda tenant: tenant)
    theirs = Duly(store_url)
    unknown = theirs.task(name="a_send", limit=1, limit_key=str)(lambda tenant: tenant)
    theirs.enqueue_many([unknown.call(f"{number:03}") for number in range(MANY)])
    theirs.close()
    return send.enqueue("zoe")


MANY = 4 * LIMITS_BATCH + 50


def test_draining_does_not_end_before_a_run_behind_many_that_cannot_be_served(app, behind_many):
    app.worker().drain(timeout=HURRY)

    assert behind_many.refresh().state == "succeeded"


def test_draining_in_the_calling_thread_does_not_either(app, behind_many):
    assert InlineWorker(app.store, app.registry, app.bus).drain() == 1
    assert behind_many.refresh().state == "succeeded"


def test_a_worker_comes_to_a_run_behind_many_that_cannot_be_served(app, behind_many, monkeypatch):
    # Without the poll, which would have it begin again and again.
    monkeypatch.setattr(Promoter, "tick", lambda _promoter: 60.0)
    with app.worker():
        assert behind_many.result(timeout=HURRY) == "zoe"


@pytest.fixture
def claimer(app: Duly, tmp_path) -> Iterator[Claimer]:
    """What claims for a worker, of two queues."""
    slots = StartMarks(tmp_path / "slots", create=100)
    slots.deadline = monotonic() + 600
    worker_id = new_id()
    app.store.do(RegisterWorker(worker_id, "here", 1, 600.0, "[]", "[]"))
    yield Claimer(
        app.store,
        app.registry,
        InFlightClaims(slots, {LOOP: 10, THREAD: 10}, CLAIM_BATCH),
        slots,
        lambda _taken: None,
        worker_id=worker_id,
        queues=(QueueLimit("default"), QueueLimit("mail")),
        one_slot=False,
        takes_suspects=False,
    )
    slots.close()


@pytest.mark.parametrize(("count", "most"), [(1, 1), (LIMITS_BATCH - 1, 1), (MANY, 5)])
def test_what_cannot_be_served_is_looked_at_once_for_each_call(app, claimer, count, most):
    @app.task(name="send", limit=1, limit_key=str, queue="paused")
    def send(tenant: str) -> None: ...

    app.queues.pause("paused")
    app.enqueue_many([send.call(f"{number:03}") for number in range(count)])

    for _ in range(3):
        claimer.is_awaited = True
        looks = 1
        while (pause := claimer.tick()) < POLL_SECONDS:
            assert pause > 0
            looks += 1

        assert looks <= most


def test_every_queue_of_a_worker_is_asked_under_every_limit(app, claimer):
    @app.task(name="send", limit=1, limit_key=str)
    def send(tenant: str) -> None: ...

    other = send.using(queue="other")
    app.enqueue_many([other.call(f"{number:03}") for number in range(2 * LIMITS_BATCH)])
    places = {"000": "default", "001": "mail", "198": "default", "199": "mail"}
    app.enqueue_many([send.using(queue=queue).call(key) for key, queue in places.items()])

    for _ in range(2):
        claimer.tick()

    assert claimer.claims_made == len(places)


@pytest.fixture
def without_limit(app: Duly, store_url: str) -> Run[str]:
    """A run under a limit that its task has no more, and that is to be done twice."""
    before = Duly(store_url)
    run = before.task(name="send", limit=1)(lambda: None).enqueue()
    before.close()

    @app.task(name="send", retries=3)
    def send() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise RetryAfter(0.1)
        return "sent"

    attempts: list[int] = []
    return app.runs.get(run.id)


def test_a_look_without_room_puts_off_no_look_at_limits(claimer, without_limit):
    claimer.queues = (QueueLimit("default", 0),)
    claimer.tick()
    claimer.queues = (QueueLimit("default", 1),)
    claimer.tick()

    assert claimer.claims_made == 1, without_limit


def test_a_worker_whose_task_has_lost_its_limit_leaves_nothing_under_it(app, without_limit):
    with app.worker():
        assert without_limit.result(timeout=HURRY) == "sent"


def test_a_drain_whose_task_has_lost_its_limit_leaves_nothing_under_it(app, without_limit):
    app.worker().drain(timeout=HURRY)

    assert without_limit.refresh().state == "succeeded"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 0}, "at least 1"),
        ({"limit": True}, "at least 1"),
        ({"limit_key": str}, "pass limit too"),
    ],
)
def test_what_is_no_limit_is_refused(options, words):
    with pytest.raises(BadOption, match=words):
        Duly("sqlite://").task(name="none", **options)(lambda: None)


def test_a_key_that_is_no_text_is_refused_at_the_call(app):
    @app.task(name="send", limit=1, limit_key=lambda number: number)
    def send(number: int) -> None: ...

    with pytest.raises(BadOption, match="limit_key must return a string"):
        send.enqueue(3)
    with pytest.raises(BadOption, match="at least 1"):
        app.queues.limit("default", 0)
    assert app.runs.list() == []

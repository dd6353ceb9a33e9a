"""Slots, queues and priorities: nothing runs beyond its limit, and no slot idles beside work."""

import asyncio
import threading
import time

import pytest

from duly import BadOption, Duly
from duly.clock import monotonic, new_id
from duly.core.served_queues import parse_names, parse_queues
from duly.core.states import State
from duly.core.verdict import Finish
from duly.limits import CLAIM_BATCH
from duly.store.ops.runs import Settle
from duly.store.ops.upkeep import RegisterWorker
from duly.task import Task
from duly.worker.claimer import Claimer
from duly.worker.inflight import LOOP, THREAD, InFlightClaim, InFlightClaims
from duly.worker.start_marks import StartMarks
from tests.servers.processes import wait_until

pytestmark = pytest.mark.surface

FINISHED = Finish(State.SUCCEEDED)


class Gauge:
    """Counts how many bodies are inside at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = 0
        self.most = 0
        self.total = 0

    def __enter__(self) -> None:
        with self._lock:
            self.inside += 1
            self.total += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


@pytest.fixture
def gauge() -> Gauge:
    """How full it is."""
    return Gauge()


def test_no_more_threads_than_asked_for(app: Duly, gauge):
    @app.task(name="body")
    def body() -> None:
        with gauge:
            time.sleep(0.005)

    app.enqueue_many(body.call() for _ in range(60))
    app.worker(concurrency=3).drain(timeout=30)

    assert (gauge.most, gauge.total) == (3, 60)


def test_no_more_coroutines_than_asked_for(app, gauge):
    @app.task(name="body")
    async def body() -> None:
        with gauge:
            await asyncio.sleep(0.005)

    app.enqueue_many(body.call() for _ in range(100))
    app.worker(async_limit=7).drain(timeout=30)

    assert (gauge.most, gauge.total) == (7, 100)


def test_a_limited_queue_never_exceeds_its_limit_and_others_go_on(app, gauge):
    other = Gauge()

    @app.task(name="mail", queue="mail")
    def mail() -> None:
        with gauge:
            time.sleep(0.01)

    @app.task(name="free")
    def free() -> None:
        with other:
            time.sleep(0.01)

    app.enqueue_many(task.call() for _ in range(40) for task in (mail, free))
    app.worker(concurrency=8, queues="mail:2,default").drain(timeout=40)

    assert (gauge.total, other.total) == (40, 40)
    assert gauge.most <= 2
    assert other.most > 2


def test_the_limit_of_a_queue_can_change_while_its_worker_runs(app, gauge):
    opened = threading.Event()

    @app.task(name="mail", queue="mail")
    def mail() -> None:
        with gauge:
            opened.wait(20)

    app.enqueue_many(mail.call() for _ in range(6))
    with app.worker(concurrency=8, queues="mail:1") as worker:
        wait_until(lambda: gauge.inside == 1, seconds=20, what="one runs")
        worker.limit_queue("mail", 3)
        wait_until(lambda: gauge.inside == 3, seconds=20, what="three run")
        with pytest.raises(BadOption, match="does not list queue"):
            worker.limit_queue("post", 3)
        opened.set()
        wait_until(lambda: gauge.total == 6, seconds=20, what="all run")
    assert gauge.most == 3


def test_a_limited_queue_keeps_its_limit_over_tasks_of_every_kind(app, gauge):
    @app.task(name="on_threads", queue="mail")
    def on_threads() -> None:
        with gauge:
            time.sleep(0.01)

    @app.task(name="on_threads_held", queue="mail", on_crash="hold")
    def on_threads_held() -> None:
        with gauge:
            time.sleep(0.01)

    @app.task(name="on_the_loop", queue="mail")
    async def on_the_loop() -> None:
        with gauge:
            await asyncio.sleep(0.01)

    @app.task(name="on_the_loop_held", queue="mail", on_crash="hold")
    async def on_the_loop_held() -> None:
        with gauge:
            await asyncio.sleep(0.01)

    tasks = (on_threads, on_threads_held, on_the_loop, on_the_loop_held)
    app.enqueue_many(task.call() for _ in range(10) for task in tasks)
    app.worker(concurrency=8, queues="mail:2").drain(timeout=40)

    assert gauge.total == 40
    assert gauge.most <= 2


def test_in_a_limited_queue_no_kind_of_task_starves_another(app):
    order: list[str] = []

    @app.task(name="on_the_loop", queue="mail")
    async def on_the_loop() -> None:
        order.append("loop")

    @app.task(name="held", queue="mail", on_crash="hold")
    def held() -> None:
        order.append("hold")

    app.enqueue_many([*(on_the_loop.call() for _ in range(60)), held.call()])
    app.worker(concurrency=2, queues="mail:1").drain(timeout=40)

    assert len(order) == 61
    assert order.index("hold") < 30


def test_a_worker_of_some_queues_leaves_the_others_alone_and_drains(app):
    @app.task(name="body")
    def body() -> None: ...

    mine = [body.using(queue="mine").enqueue() for _ in range(3)]
    theirs = [body.using(queue="theirs").enqueue() for _ in range(3)]
    app.worker(queues="mine").drain(timeout=10)

    assert {str(run.refresh().state) for run in mine} == {"succeeded"}
    assert {str(run.refresh().state) for run in theirs} == {"queued"}


@pytest.mark.parametrize("queues", [None, "default", "default:2"])
def test_a_slot_that_becomes_free_is_filled_at_once_beside_a_long_body(app, queues):
    entered, go_on = threading.Event(), threading.Event()

    @app.task(name="long")
    def long() -> None:
        entered.set()
        go_on.wait(30)

    @app.task(name="short")
    def short() -> None:
        time.sleep(0.01)

    with app.worker(concurrency=2, queues=queues):
        long.enqueue()
        assert entered.wait(20)
        runs = app.enqueue_many(short.call() for _ in range(10))
        begun = time.monotonic()
        for run in runs:
            run.result(timeout=30)
        took = time.monotonic() - begun
        go_on.set()

    # Ten bodies of 10 ms each, one after the other; a poll between each two would take 20 s.
    assert took < 4


def test_higher_priorities_run_first_and_equals_in_the_order_of_their_time(app):
    order: list[int] = []

    @app.task(name="body")
    def body(number: int) -> None:
        order.append(number)

    for number, priority in enumerate([0, 5, -3, 5, 0, 1_000_000, -1_000_000]):
        body.using(priority=priority).enqueue(number)
    app.worker(concurrency=1).drain(timeout=20)

    assert order == [5, 1, 3, 0, 4, 2, 6]


def test_what_may_not_wait_starts_before_what_may(app):
    started: list[str] = []
    go_on = threading.Event()

    async def wait(name: str) -> None:
        started.append(name)
        await asyncio.to_thread(go_on.wait, 30)

    @app.task(name="held", on_crash="hold")
    async def held() -> None:
        await wait("held")

    @app.task(name="rerun", priority=9)
    async def rerun() -> None:
        await wait("rerun")

    app.enqueue_many([rerun.call(), rerun.call(), held.call(), held.call()])
    with app.worker(async_limit=2, concurrency=1):
        wait_until(lambda: len(started) == 2, seconds=20, what="two bodies run")
        seen = list(started)
        # Whatever was claimed beside them and may wait is not among those that run.
        claimed = [run.record.task for run in app.runs.list(state="running")]
        go_on.set()

    assert claimed.count(held.name) == seen.count("held")


def test_a_busy_queue_starves_no_other(app):
    seen: list[str] = []

    @app.task(name="body")
    def body(queue: str) -> None:
        seen.append(queue)
        time.sleep(0.002)

    app.enqueue_many(body.using(queue="busy").call("busy") for _ in range(300))
    app.enqueue_many(body.using(queue="quiet").call("quiet") for _ in range(5))
    app.worker(concurrency=2).drain(timeout=40)

    assert seen.count("quiet") == 5
    assert max(place for place, queue in enumerate(seen) if queue == "quiet") < 300


def test_two_workers_share_the_work_and_run_nothing_twice(app, store_url, gauge):
    seen: list[int] = []

    def define(app: Duly):
        @app.task(name="body")
        async def body(number: int) -> None:
            seen.append(number)

        return body

    body = define(app)
    other = Duly(store_url)
    define(other)
    with app.worker(), other.worker():
        runs = app.enqueue_many(body.call(n) for n in range(500))
        wait_until(
            lambda: set(app.store.get_states([run.id for run in runs]).values()) == {"succeeded"},
            seconds=40,
            what="all have succeeded",
        )
    other.close()

    assert sorted(seen) == list(range(500))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ()),
        ("", ()),
        ("mail", (("mail", None),)),
        ("mail:20, default", (("mail", 20), ("default", None))),
        ("a:b:3", (("a:b", 3),)),
    ],
)
def test_queues_are_read_from_text(text, expected):
    assert parse_queues(text) == expected


@pytest.mark.parametrize("text", ["mail:0", "mail:-1", "mail:x", ":3", "mail:", "mail:1.5"])
def test_queues_that_mean_nothing_are_refused(text):
    with pytest.raises(BadOption, match="not of the form name or name:limit"):
        parse_queues(text)


def test_an_option_is_not_taken_for_the_name_of_a_queue():
    for read in (parse_queues, parse_names):
        with pytest.raises(BadOption, match="queue '--drain' must not begin with '-', as the opt"):
            read("mail,--drain")


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"async_limit": 0}, {"grace": -1}])
def test_a_worker_that_could_do_nothing_is_refused(untouched_app, options):
    with pytest.raises(BadOption):
        untouched_app.worker(**options)


@pytest.fixture
def untouched_app(tmp_path) -> Duly:
    """An application without a store that matters."""
    return Duly(f"sqlite:///{tmp_path / 'none.db'}")


@pytest.mark.parametrize("queues", [None, "default"])
def test_runs_that_may_not_be_claimed_ahead_follow_one_another_at_once(app, queues):
    @app.task(name="pay", on_crash="hold")
    def pay() -> None: ...

    runs = [pay.enqueue() for _ in range(8)]
    with app.worker(concurrency=1, queues=queues):
        began = time.monotonic()
        for run in runs:
            run.result(timeout=20)

    # By polling alone every second one would take four seconds.
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("kinds", [("thread",), ("process",), ("thread", "process")])
def test_a_claimer_that_has_left_nothing_has_left_nothing(app, kinds, tmp_path):
    """Follows the rule of the worker: after a release it looks again only if some were left."""
    for kind in kinds:
        app.task(name=f"hold-{kind}", executor=kind, on_crash="hold")(nothing)
        app.enqueue_many(
            Task(app, app.registry.get(f"hold-{kind}")).call() for _ in range(6 // len(kinds))
        )
    slots = StartMarks(tmp_path / "slots", create=100)
    slots.deadline = monotonic() + 60
    hand = InFlightClaims(slots, {LOOP: 10, THREAD: 1}, CLAIM_BATCH)
    worker_id = new_id()
    app.store.do(RegisterWorker(worker_id, "here", 1, 15.0, "[]", "[]"))
    taken: list[InFlightClaim] = []
    claimer = Claimer(
        app.store,
        app.registry,
        hand,
        slots,
        taken.extend,
        worker_id=worker_id,
        queues=(),
        one_slot=False,
        takes_suspects=False,
    )
    for _ in range(30):
        if not claimer.left_some:
            break
        claimer.tick()
        for held in taken:
            assert hand.begin(held)
            hand.end(held, 0.1)
            claim = held.claim
            done = Settle(claim.run_id, claim.claim_number, "returned", FINISHED, 0, None, False)
            app.store.do(done)
            hand.release([held])
        taken.clear()

    assert [run.state for run in app.runs.list()] == ["succeeded"] * 6
    slots.close()


def test_no_more_is_claimed_for_processes_than_asked_for(app, tmp_path):
    slots = StartMarks(tmp_path / "slots", create=100)
    slots.deadline = monotonic() + 60
    hand = InFlightClaims(slots, {LOOP: 10, THREAD: 10}, CLAIM_BATCH)
    worker_id = new_id()
    app.store.do(RegisterWorker(worker_id, "here", 1, 15.0, "[]", "[]"))
    apart = app.task(executor="process", name="apart")(nothing)
    held_apart = app.task(executor="process", name="held", on_crash="hold")(nothing)
    app.enqueue_many(task.call() for _ in range(5) for task in (apart, held_apart))
    taken: list[InFlightClaim] = []
    claimer = Claimer(
        app.store,
        app.registry,
        hand,
        slots,
        taken.extend,
        worker_id=worker_id,
        queues=(),
        process_limit=3,
        one_slot=False,
        takes_suspects=False,
    )
    for _ in range(4):
        claimer.tick()

    assert len(taken) == 3
    slots.close()


def nothing() -> None:
    """A body that is never called."""

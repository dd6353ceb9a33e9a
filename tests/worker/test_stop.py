"""Stopping, draining, and going on under a new identity."""

import asyncio
import gc
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from duly import Duly, StoreUnavailable, current, faultpoints
from duly.errors import WorkerTimeout
from duly.events import ClaimsHandedBack, WorkerEnded, WorkerStarted
from duly.store.store_factory import runtime_folder
from duly.worker.services.recovery import recover_worker
from tests.servers.processes import wait_until
from tests.worker.waits import take_over, wait_until_empty


@pytest.fixture
def events(app: Duly) -> list:
    """Everything the worker tells."""
    events: list = []
    app.bus.subscribe(events.append)
    return events


def live_workers(app: Duly) -> list[str]:
    """Return the ids of the workers that the store calls live."""
    return [worker.id for worker in app.workers.list() if worker.state == "live"]


def open_files() -> str:
    """Return the names of all files that this process holds open, removed ones included."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return "\n".join(found)


def test_stopping_waits_for_the_bodies_and_records_their_ends(app):
    entered = [threading.Event() for _ in range(2)]

    @app.task(name="plain")
    def plain() -> str:
        entered[0].set()
        time.sleep(0.2)
        return "done"

    @app.task(name="coroutine")
    async def coroutine() -> str:
        entered[1].set()
        await asyncio.sleep(0.2)
        return "done"

    runs = [plain.enqueue(), coroutine.enqueue()]
    with app.worker():
        for event in entered:
            assert event.wait(20)

    assert [run.refresh().state for run in runs] == ["succeeded", "succeeded"]
    assert live_workers(app) == []


def test_stopping_hands_back_what_has_not_started(app, events):
    entered, go_on = threading.Event(), threading.Event()

    @app.task(name="body")
    def body(number: int) -> int:
        if number == 1000:
            entered.set()
            go_on.wait(30)
        return number

    worker = app.worker(concurrency=1).start()
    # Short bodies make the worker claim ahead of its one slot.
    for run in app.enqueue_many(body.call(n) for n in range(100)):
        run.result(timeout=20)
    runs = app.enqueue_many(body.call(n) for n in range(1000, 1020))
    assert entered.wait(20)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    # They go back at once, for others to take, while the one that has begun goes on.
    wait_until(
        lambda: [str(run.refresh().state) for run in runs] == ["running"] + ["queued"] * 19,
        seconds=20,
        what="what has not started goes back",
    )
    go_on.set()
    stopping.join(30)

    states = [str(run.refresh().state) for run in runs]
    assert states == ["succeeded"] + ["queued"] * 19
    assert {run.record.attempt for run in runs} == {1}
    assert all(run.attempts() == [] for run in runs[1:])
    back = {
        run_id
        for event in events
        if isinstance(event, ClaimsHandedBack)
        for run_id in event.run_ids
    }
    assert back, "nothing was claimed ahead, so this shows nothing"
    assert back <= {run.id for run in runs[1:]}


def test_at_the_end_of_the_grace_a_coroutine_is_stopped_and_queued_again_uncharged(app):
    entered = threading.Event()

    @app.task(name="slow")
    async def slow() -> None:
        entered.set()
        await asyncio.sleep(600)

    run = slow.enqueue()
    with app.worker(grace=0.1):
        assert entered.wait(20)

    record = run.refresh().record
    assert (record.state, record.attempt, record.crashes) == ("queued", 1, 0)
    assert [attempt.outcome for attempt in run.attempts()] == ["stopped"]
    assert live_workers(app) == []


def test_at_the_end_of_the_grace_a_held_coroutine_is_interrupted(app):
    entered = threading.Event()

    @app.task(name="charge", on_crash="hold")
    async def charge() -> None:
        entered.set()
        await asyncio.sleep(600)

    run = charge.enqueue()
    with app.worker(grace=0.1):
        assert entered.wait(20)

    assert (run.refresh().state, run.cause) == ("interrupted", "stopped")


def test_a_body_that_outlives_the_grace_keeps_its_claim_until_it_has_ended(app, store_url):
    entered, go_on = threading.Event(), threading.Event()
    bodies = []

    def define(app: Duly):
        @app.task(name="deaf")
        def deaf() -> int:
            bodies.append(current().fence)
            entered.set()
            go_on.wait(30)
            return current().fence

        return deaf

    run = define(app).enqueue()
    with app.worker(grace=0.05, lease=0.6, beat=0.2):
        assert entered.wait(20)
    other = Duly(store_url)
    define(other)
    with other.worker(lease=0.6, beat=0.2):
        # Three leases later nobody else has begun: the thread of the first is alive.
        time.sleep(1.8)
        assert bodies == [1]
        go_on.set()
        assert run.result(timeout=20) == 1
        wait_until(
            lambda: len(live_workers(other)) == 1, seconds=20, what="the first one parts as well"
        )
    other.close()


def test_a_worker_that_two_stop_at_once_ends_without_a_word(app):
    @app.task(name="nothing")
    async def nothing() -> None: ...

    with app.worker() as embedded:
        nothing.enqueue().result(timeout=20)
        worker = embedded._worker

    worker.stop()  # As the thread that renews does, when it finds the last body gone.

    assert live_workers(app) == []


def test_stopping_twice_or_before_the_start_is_nothing(app):
    worker = app.worker()
    worker.stop()

    with worker:
        worker.stop()
    worker.stop()

    assert live_workers(app) == []


def test_a_worker_leaves_no_threads_behind(app):
    @app.task(name="body")
    def body() -> None: ...

    body.enqueue()
    assert app.queues.list()  # The store's own threads are there before.
    before = set(threading.enumerate())
    app.worker(concurrency=3).drain(timeout=20)

    def left() -> set[str]:
        # A store keeps the threads of its connections until it is closed.
        return {
            thread.name
            for thread in set(threading.enumerate()) - before
            if not thread.name.startswith(("duly-readers", "duly-committer"))
        }

    wait_until(lambda: left() == set(), seconds=20, what="its threads end")


def test_draining_works_until_nothing_is_left_to_do(app):
    @app.task(name="parent")
    def parent(depth: int) -> None:
        if depth:
            parent.enqueue(depth - 1)

    run = parent.enqueue(5)
    app.worker().drain(timeout=30)

    runs = app.runs.list()
    assert run.refresh().state == "succeeded"
    assert [str(run.state) for run in runs] == ["succeeded"] * 6


def test_draining_leaves_what_is_not_due(app):
    @app.task(name="body")
    def body() -> None: ...

    later = body.using(delay=60).enqueue()
    now = body.enqueue()
    app.worker().drain(timeout=20)

    assert (now.refresh().state, later.refresh().state) == ("succeeded", "queued")


def test_draining_an_empty_store_ends_at_once(app):
    begun = time.monotonic()

    app.worker().drain(timeout=20)

    assert time.monotonic() - begun < 10
    assert live_workers(app) == []


def test_draining_for_longer_than_allowed_is_an_error(app):
    @app.task(name="endless")
    async def endless() -> None:
        await asyncio.sleep(600)

    run = endless.enqueue()
    with pytest.raises(WorkerTimeout, match="still unfinished runs after"):
        app.worker(grace=0).drain(timeout=0.3)

    assert run.refresh().state == "queued"


def test_a_claim_on_its_way_to_the_hand_is_not_idleness(app):
    @app.task(name="body")
    def body() -> str:
        return "done"

    with app.worker() as worker:
        inner = worker._worker
        wait_until(inner.is_idle, seconds=20, what="it is idle")
        looks: list[tuple[str, bool]] = []

        def look() -> None:
            looks.append((str(app.runs.get(run_id).state), inner.is_idle()))

        app.queues.pause("default")
        run_id = body.enqueue().id
        faultpoints.arm("claim.after_commit", look)
        app.queues.resume("default")
        assert app.runs.get(run_id).result(timeout=20) == "done"

    assert ("running", False) in looks
    assert ("running", True) not in looks


class TestNewIdentity:
    """A worker that others took for dead goes on under a new identity."""

    def test_what_it_ran_is_dropped_and_it_goes_on(self, app, events):
        entered, go_on = threading.Event(), threading.Event()
        fences = []

        @app.task(name="body")
        def body() -> int:
            fences.append(current().fence)
            if current().fence == 1:
                entered.set()
                go_on.wait(30)
            return current().fence

        run = body.enqueue()
        with app.worker(lease=0.9, beat=0.3) as worker:
            assert entered.wait(20)
            first = worker.worker_id
            take_over(app, worker, run.id)
            assert run.result(timeout=20) == 2
            second = worker.worker_id
            go_on.set()
            wait_until_empty(worker)
            assert run.refresh().result() == 2

        assert first != second
        assert fences == [1, 2]
        started = [event.worker_id for event in events if isinstance(event, WorkerStarted)]
        assert started == [first, second]

    def test_its_coroutines_are_ended(self, app):
        entered, ended = threading.Event(), threading.Event()

        @app.task(name="body")
        async def body() -> int:
            if current().fence > 1:
                return current().fence
            entered.set()
            try:
                await asyncio.sleep(600)
            finally:
                ended.set()
            return 0

        run = body.enqueue()
        with app.worker(lease=0.9, beat=0.3) as worker:
            assert entered.wait(20)
            take_over(app, worker, run.id)

            assert ended.wait(20)
            assert run.result(timeout=20) == 2

    def test_a_store_that_fails_just_then_does_not_end_it(self, app, monkeypatch):
        @app.task(name="body")
        def body() -> str:
            return "done"

        with app.worker(lease=0.9, beat=0.3) as worker:
            wait_until(
                lambda: worker._keepalive.beats_succeeded_since is not None,
                seconds=20,
                what="the first beat",
            )
            failures = [StoreUnavailable("gone")] * 2
            real = app.store.apply

            def apply(ops):
                if failures and type(ops[0]).__name__ == "RegisterWorker":
                    raise failures.pop()
                return real(ops)

            monkeypatch.setattr(app.store, "apply", apply)
            before = worker.worker_id
            recover_worker(app.store, app.bus, before, runtime_folder(app.store))

            wait_until(lambda: failures == [], seconds=20, what="it tried in vain")
            assert body.enqueue().result(timeout=20) == "done"

    def test_each_new_name_leaves_nothing_open_of_the_one_before(self, app):
        with app.worker(lease=0.9, beat=0.3) as worker:

            def take_a_new_name() -> int:
                before = worker.worker_id
                recover_worker(app.store, app.bus, before, runtime_folder(app.store))
                wait_until(
                    lambda: worker.worker_id != before and worker.is_live,
                    seconds=20,
                    what="it goes on",
                )
                return before

            names = {take_a_new_name(), take_a_new_name()}

            def are_gone() -> bool:
                gc.collect()
                found = open_files()
                return not any(name in found for name in names)

            wait_until(are_gone, seconds=20, what="nothing of them is open")

    def test_one_that_is_stopped_as_it_takes_its_new_name_leaves_nobody(self, app, monkeypatch):
        is_beginning, goes_on = threading.Event(), threading.Event()
        with app.worker(lease=0.9, beat=0.3) as worker:
            begin = worker._begin

            def hold() -> None:
                is_beginning.set()
                goes_on.wait(20)
                begin()

            monkeypatch.setattr(worker, "_begin", hold)
            recover_worker(app.store, app.bus, worker.worker_id, runtime_folder(app.store))
            assert is_beginning.wait(20)
            stopping = threading.Thread(target=worker.stop)
            stopping.start()
            wait_until(lambda: worker._keepalive._ended, seconds=20, what="it stops")
            goes_on.set()
            stopping.join(20)

            assert worker.worker_id is None
        assert live_workers(app) == []


def test_two_embedded_workers_of_one_application_live_side_by_side(app):
    @app.task(name="body")
    def body(number: int) -> int:
        return number

    with app.worker(concurrency=1), app.worker(concurrency=1):
        assert len(live_workers(app)) == 2
        runs = app.enqueue_many(body.call(n) for n in range(20))

        assert [run.result(timeout=20) for run in runs] == list(range(20))

    assert live_workers(app) == []


def test_a_workers_end_is_told(app, events):
    with app.worker():
        (worker_id,) = live_workers(app)

    assert [e for e in events if isinstance(e, WorkerEnded)] == [
        WorkerEnded(worker_id, "stopped", ())
    ]


def test_a_worker_that_two_threads_stop_at_once_is_stopped_once(app, monkeypatch):
    listen, ends = app.store.listen, []
    has_begun, may_go_on = threading.Event(), threading.Event()

    def listen_and_note(*callbacks):
        end_listening = listen(*callbacks)

        def end() -> None:
            ends.append(threading.current_thread())
            has_begun.set()
            may_go_on.wait(5)
            end_listening()

        return end

    monkeypatch.setattr(app.store, "listen", listen_and_note)
    with app.worker() as embedded:
        worker = embedded._worker
        threads = [threading.Thread(target=worker.stop) for _ in range(2)]
        threads[0].start()
        assert has_begun.wait(5)
        threads[1].start()
        threads[1].join(0.2)
        may_go_on.set()
        for thread in threads:
            thread.join(5)

    assert ends == threads[:1]

"""`duly worker --drain`: all worker processes end together, when nothing is left for any."""

import os
import time
from contextlib import ExitStack, closing
from functools import partial
from types import SimpleNamespace

import pytest

from duly import Duly, Retry
from duly.clock import monotonic
from duly.store.store_factory import runtime_folder
from duly.worker.start_marks import StartMarks
from duly.worker.worker_process import have_drained
from tests.servers.processes import wait_until
from tests.worker import shop as shop_module
from tests.worker.trees import Tree

TASKS = """
from duly import Duly, Retry
from duly.clock import monotonic

app = Duly()


@app.task
def spread(depth: int) -> None:
    if depth:
        for _ in range(2):
            spread.enqueue(depth - 1)


@app.task(retries=Retry(1, base=600))
def fail() -> None:
    raise ConnectionError


@app.every(seconds=2)
def tick() -> None: ...
"""


@pytest.fixture
def shop(store_url):
    """The application that the worker processes import, on the same store."""
    shop_module.app.use_url(store_url)
    assert shop_module.app.runs.list() == []
    yield shop_module
    shop_module.app.close()


@pytest.fixture
def drain(store_url, tmp_path):
    """Return a function that drains the store with the tasks above."""
    (tmp_path / "tasks.py").write_text(TASKS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path}

    def drained(*, processes: int = 1, **settings: float) -> str:
        options = settings | {"processes": processes, "drain": True}
        with Tree(store_url, tmp_path, app="tasks:app", environment=environment, **options) as tree:
            assert tree.ended(seconds=50) == 0
            return tree.log.read_text()

    return drained


@pytest.fixture
def app(store_url):
    """An application that only enqueues."""
    app = Duly(store_url)
    yield app
    app.close()


def states(app: Duly, task: str) -> list[str]:
    return [str(run.state) for run in app.runs.list(limit=200) if run.record.task == task]


@pytest.mark.process
@pytest.mark.parametrize("processes", [1, 2])
def test_workers_end_on_an_empty_store_although_a_schedule_fires_soon(drain, processes):
    assert "stopping: nothing is left to do" in drain(processes=processes)


@pytest.mark.process
@pytest.mark.parametrize("processes", [1, 2])
def test_workers_do_what_their_runs_enqueue_before_they_end(app, drain, processes):
    @app.task(name="tasks:spread")
    def spread(depth: int) -> None: ...

    spread.enqueue(5)
    drain(processes=processes, concurrency=2)

    assert states(app, "tasks:spread") == ["succeeded"] * 63


@pytest.mark.process
def test_a_retry_that_is_due_later_stays_queued(app, drain):
    @app.task(name="tasks:fail", retries=Retry(1, base=600))
    def fail() -> None: ...

    run = fail.enqueue()
    drain()

    assert run.refresh().state == "queued"
    assert [attempt.outcome for attempt in run.attempts()] == ["raised"]


@pytest.mark.process
def test_a_process_without_runs_stays_while_another_one_has_runs(shop, notes, store_url, tmp_path):
    first = shop.linger.enqueue(*notes.arguments(1))
    with Tree(store_url, tmp_path, processes=2, concurrency=1, drain=True) as tree:
        (busy,) = notes.wait_for_starts(1)
        folder = runtime_folder(shop.app.store)

        def drained_and_attended_after(at: float) -> bool:
            with ExitStack() as stack:
                marks = [
                    stack.enter_context(closing(StartMarks(path)))
                    for path in folder.glob("*.slots")
                ]
                return any(each.drained_since > 0 and each.attended_at > at for each in marks)

        for _ in range(3):  # In the time of three heartbeats the supervisor looks several times.
            wait_until(
                partial(drained_and_attended_after, monotonic()),
                seconds=40,
                what="the other process finds nothing to do",
            )
        second = shop.linger.enqueue(*notes.arguments(2))
        (other,) = [line for line in notes.wait_for_starts(2) if line.number == 2]
        notes.open_gate()

        assert tree.ended(seconds=40) == 0
    assert other.pid != busy.pid
    assert [str(run.refresh().state) for run in (first, second)] == ["succeeded"] * 2


@pytest.mark.process
@pytest.mark.timing
@pytest.mark.parametrize("processes", [1, 2])
def test_workers_end_soon_after_their_last_run(shop, store_url, tmp_path, processes):
    runs = shop.app.enqueue_many(shop.quick.call(number) for number in range(20))
    with Tree(store_url, tmp_path, processes=processes, drain=True) as tree:
        assert tree.ended(seconds=40) == 0
        ended_at = time.time()

    last = max(run.refresh().record.finished_at for run in runs) / 1e6
    assert ended_at - last < 1.5


class TestOneInstant:
    """The supervisor reads in shared memory whether nothing is left for any process."""

    @pytest.fixture
    def workers(self, tmp_path):
        slots = [StartMarks(tmp_path / f"{name}.slots", create=1) for name in "ab"]
        yield [SimpleNamespace(slots=each) for each in slots]
        for each in slots:
            each.close()

    def test_all_must_have_found_nothing(self, workers):
        first, second = workers
        first.slots.note_drained(0, at=10.0)
        assert not have_drained(workers, since=5.0)

        second.slots.note_drained(0, at=11.0)
        assert have_drained(workers, since=5.0)

    def test_a_claim_under_way_may_bring_a_run(self, workers):
        for each in workers:
            each.slots.note_drained(0, at=10.0)
        workers[0].slots.taken = 1
        assert not have_drained(workers, since=5.0)

        workers[0].slots.taken = 0  # It got none.
        assert have_drained(workers, since=5.0)

    def test_a_worker_that_found_nothing_before_runs_were_recovered_looks_again(self, workers):
        first, second = workers
        first.slots.note_drained(0, at=10.0)
        second.slots.note_drained(0, at=20.0)

        assert not have_drained(workers, since=15.0)

        assert first.slots.drained_since == 0
        first.slots.note_drained(0, at=21.0)
        assert have_drained(workers, since=15.0)


def test_a_worker_is_without_runs_until_it_claims_one(app):
    @app.task(name="body")
    def body() -> None: ...

    with app.worker() as embedded:
        worker, slots = embedded._worker, embedded._slots
        wait_until(worker.has_drained, seconds=20, what="nothing is due")
        since = slots.drained_since
        assert since > 0

        body.enqueue().result(timeout=20)
        assert slots.drained_since == 0

        wait_until(worker.has_drained, seconds=20, what="nothing is due")
        assert slots.drained_since > since

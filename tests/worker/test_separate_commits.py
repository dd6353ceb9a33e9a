"""A worker whose store fails between the ops of its calls loses and doubles nothing."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import pytest

import duly
from duly import Retry, RetryAfter, StoreUnavailable, current, faultpoints
from duly.carrier import CarrierMessage, ResendPolicy
from duly.core.states import FINAL
from duly.run import Run
from duly.store.ops.runs import Settle
from duly.store.ops.updates import AddLogs
from duly.store.reads import RunFilter
from duly.worker.inline_worker import InlineWorker
from duly.worker.services.relay import Relay
from tests.servers.processes import wait_until
from tests.store.separate_commits import SeparateCommitsApp

SEEDS = (1, 2, 3)
EACH = 12
"""How many runs of each kind there are."""
CHILDREN = 4
LEAST_FAILURES = 3


class Workload(NamedTuple):
    """The runs of a test, with what their bodies noted."""

    runs: dict[str, list[Run[object]]]
    noted: Counter[tuple[str, ...]]


@pytest.fixture(params=SEEDS)
def app(store_url: str, request: pytest.FixtureRequest) -> Iterator[SeparateCommitsApp]:
    """An application whose store fails in the middle of many calls with several ops."""
    app = SeparateCommitsApp(store_url, seed=request.param, rate=0.4, most=20)
    yield app
    app.close()


def enqueue_workload(app: SeparateCommitsApp) -> Workload:
    """Enqueue runs of all kinds; nothing is enqueued twice, whatever fails."""
    noted: Counter[tuple[str, ...]] = Counter()

    @app.task(name="plain")
    def plain(number: int) -> int:
        noted["plain", current().run_id] += 1
        return number

    @app.task(name="coroutine")
    async def coroutine(number: int) -> int:
        noted["coroutine", current().run_id] += 1
        return number

    @app.task(name="step")
    def stepping(number: int) -> int:
        def first() -> int:
            noted["first", current().run_id] += 1
            return number

        one = duly.step("first", first)
        duly.sleep("moment", 0.01)
        return duly.step("second", lambda: one + 1)

    @app.task(name="talk")
    def talk(number: int) -> int:
        noted["talk", current().run_id] += 1
        for line in range(3):
            current().log.info("line %s", line)
            current().progress(line / 2, f"line {line}")
        return number

    @app.task(name="retry", retries=Retry(2))
    def retry(number: int) -> int:
        noted["retry", current().run_id] += 1
        current().log.info("attempt %s", current().attempt)
        if current().attempt < 3:
            raise RetryAfter(0.01)
        return number

    @app.task(name="child")
    def child(number: int) -> int:
        noted["child", current().run_id] += 1
        return number

    @app.task(name="parent")
    def parent(number: int) -> int:
        return sum(duly.gather([child.call(number) for _ in range(CHILDREN)]))

    tasks = (plain, coroutine, stepping, talk, retry, parent)
    runs = {task.name: [task.enqueue(number) for number in range(EACH)] for task in tasks}
    keyed = [plain.using(key=f"key {number}") for number in range(EACH)]
    runs["keyed"] = [bound.enqueue(number) for number, bound in enumerate(keyed)]
    assert not any(bound.enqueue(number).new for number, bound in enumerate(keyed))
    return Workload(runs, noted)


def test_every_run_ends_once_with_the_right_result(app):
    runs, noted = workload = enqueue_workload(app)

    with app.worker(concurrency=4):
        wait_until_ended(app, workload)

    results = {"step": lambda n: n + 1, "parent": lambda n: n * CHILDREN}
    for kind, own in runs.items():
        expected = [results.get(kind, int)(number) for number in range(EACH)]
        assert [run.result(timeout=1) for run in own] == expected, kind
    assert set(noted.values()) == {1, 3}
    assert all(count == (3 if kind == "retry" else 1) for (kind, _), count in noted.items())
    check_history(app, workload)
    assert len(app.separate_commits.failures) >= LEAST_FAILURES


def wait_until_ended(app: SeparateCommitsApp, workload: Workload) -> None:
    """Wait until all runs have ended."""
    ids = [run.id for own in workload.runs.values() for run in own]
    wait_until(
        lambda: FINAL.issuperset(app.store.get_states(ids).values()),
        seconds=20,
        what="all runs have ended",
    )


def check_history(app: SeparateCommitsApp, workload: Workload) -> None:
    """Assert that nothing of the runs is missing, and nothing is there twice."""
    runs = workload.runs
    asked = {run.id for own in runs.values() for run in own}
    found = app.store.list_runs(RunFilter(limit=1000))
    assert len(found) == len(asked) + EACH * CHILDREN
    assert {run.state for run in found} == {"succeeded"}
    for run in runs["talk"]:
        assert [line.message for line in run.logs()] == ["line 0", "line 1", "line 2"]
    for run in runs["retry"]:
        assert [line.message for line in run.logs()] == [f"attempt {n}" for n in (1, 2, 3)]
        assert len(run.attempts()) == 3
    for run in runs["step"]:
        assert [step.name for step in run.steps()] == ["first", "moment", "second"]
    assert list(app.store.audit(100)) == []


def test_an_inline_worker_queues_a_run_again_whose_end_it_could_not_write(store_url):
    with closing(SeparateCommitsApp(store_url, rate=1.0, most=1)) as app:

        @app.task(name="talk")
        def talk() -> int:
            current().log.info("claim %s", current().fence)
            return 7

        run = talk.enqueue()
        worker = InlineWorker(app.store, app.registry, app.bus)

        with pytest.raises(StoreUnavailable):
            worker.drain()

        (failure,) = app.separate_commits.failures
        assert [type(op) for op in failure.written + failure.left] == [AddLogs, Settle]
        assert run.refresh().state == "queued"
        assert [attempt.outcome for attempt in run.attempts()] == ["lost"]
        assert [line.message for line in run.logs()] == ["claim 1"]


class Engine:
    """Another engine, with a policy of its own."""

    def __init__(self, first_resend_after: float) -> None:
        self.resend_policy = ResendPolicy(first_resend_after)
        self.sent: list[str] = []

    def attach(self, app: object) -> None:
        """Attach nothing: no worker of this engine runs."""

    def send(self, messages: Sequence[CarrierMessage]) -> None:
        self.sent += [message.run_id for message in messages]


def test_a_run_that_is_handed_over_is_sent_although_the_next_hand_over_fails(store_url):
    engines = [Engine(30), Engine(60)]
    with closing(SeparateCommitsApp(store_url, rate=1.0)) as app:
        tasks = [
            app.task(name=f"task-{number}", carrier=engine)(lambda: None)
            for number, engine in enumerate(engines)
        ]
        runs = [task.enqueue() for task in tasks]
        hits = itertools.count(1)
        faultpoints.arm("operate.before_write", lambda: _fail_at_second(next(hits)))

        with pytest.raises(StoreUnavailable):
            Relay(app.store, app.registry, app.bus).tick()

        handed = [run.id for run in runs if run.refresh().record.lane == "handed"]
        assert len(handed) == 1
        assert [run_id for engine in engines for run_id in engine.sent] == handed


def _fail_at_second(hit: int) -> None:
    if hit == 2:
        raise StoreUnavailable("gone")

"""An act that fails between two of its writes can be repeated, and is then done once."""

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial

import pytest

from duly import Duly, StoreUnavailable
from duly.api.restore import end_restored_runs
from duly.core.record import Claim
from duly.core.states import State
from duly.core.verdict import Finish
from duly.run import Run
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.ops.steps import BeginStep
from duly.task import Task
from tests.store.conformance.stores import opened_tables
from tests.store.conformance.verbs import (
    BOOM,
    LANE,
    OTHER_WORKER,
    WORKER,
    failure,
    register,
    settle,
    settle_op,
)
from tests.store.separate_commits import SeparateCommitsApp

RUNS = 4


@pytest.fixture
def app(store_url: str) -> Iterator[SeparateCommitsApp]:
    """An application whose store fails in the middle of the first call with several ops."""
    app = SeparateCommitsApp(store_url, seed=5, rate=1.0, most=1)
    yield app
    app.close()


@pytest.fixture
def task(app: Duly) -> Task[[int], None]:
    """A task with an alias."""

    @app.task(name="send", aliases=("post",))
    def send(number: int) -> None: ...

    return send


def claimed(app: Duly, *runs: Run[None], worker: str = WORKER) -> list[Claim]:
    """Claim runs for a worker, one by one."""
    register(app.store, worker, tasks=("send",))
    asked = ClaimRuns(worker, (Want(None, LANE, len(runs)),), ("send",))
    (found,) = app.store.apply([asked])
    assert {claim.run_id for claim in found} == {run.id for run in runs}
    return list(found)


def done_again_after_the_failure(app: SeparateCommitsApp, act: Callable[[], object]) -> object:
    """Do what fails once, and then again; return what the second one returned."""
    with pytest.raises(StoreUnavailable):
        act()
    assert len(app.separate_commits.failures) == 1
    return act()


def acts_on(app: Duly, subject: str) -> list[str]:
    """Return the audit of a subject, oldest first."""
    return [entry.act for entry in reversed(app.store.list_audit_entries(subject, 100))]


def test_both_bounds_of_a_queue_are_set(app):
    act = partial(app.queues.limit, "mail", 3, max_size=5)

    done_again_after_the_failure(app, act)

    (queue,) = app.queues.list()
    assert (queue.limit, queue.max_size) == (3, 5)


def test_a_key_is_free_under_all_names_of_its_task(app, task):
    first = task.using(key="k").enqueue(1)

    done_again_after_the_failure(app, partial(app.reset_key, task, "k"))

    assert task.using(key="k").enqueue(1).id != first.id


def test_calls_with_keys_make_one_run_each(app, task):
    calls = [task.using(key=f"k{number}").call(number) for number in range(RUNS)]

    runs = done_again_after_the_failure(app, partial(app.enqueue_many, calls))

    assert [run.id for run in runs] == [run.id for run in app.enqueue_many(calls)]
    assert len({run.id for run in runs}) == len(app.runs.list()) == RUNS


def test_each_dead_letter_is_retried_once(app, task):
    runs = [task.enqueue(number) for number in range(RUNS)]
    for claim in claimed(app, *runs):
        settle(app.store, failure(claim, BOOM))

    done_again_after_the_failure(app, partial(app.dead.retry, [run.id for run in runs]))

    assert [run.refresh().record.generation for run in runs] == [2] * RUNS
    assert [acts_on(app, run.id) for run in runs] == [["redrive"]] * RUNS


def test_schedules_in_code_are_stored_and_removed(app, store_url):
    for name in ("a", "b"):
        app.every(hours=1, name=name)(_named(f"shop:{name}"))
    done_again_after_the_failure(app, app.schedules.sync)
    assert {schedule.name: schedule.state for schedule in app.schedules.list()} == {
        "a": "active",
        "b": "active",
    }

    with closing(SeparateCommitsApp(store_url, rate=1.0, most=1)) as without:
        without.task(name="shop:other")(lambda: None)
        done_again_after_the_failure(without, without.schedules.sync)

    assert app.schedules.list() == []
    assert acts_on(app, "schedule a") == acts_on(app, "schedule b") != []


def test_runs_that_a_backup_has_live_are_interrupted(app, task, store_url):
    runs = []
    for worker in (WORKER, OTHER_WORKER):
        runs.append(task.enqueue(len(runs)))
        claimed(app, runs[-1], worker=worker)
    with opened_tables(store_url) as tables:
        tables.execute("UPDATE duly_workers SET lease_seconds = -1")
    made_at = datetime.now(UTC)

    done_again_after_the_failure(app, partial(end_restored_runs, app, made_at))

    ends = [(run.refresh().state, run.cause) for run in runs]
    assert ends == [("interrupted", "restored")] * 2
    assert [len(run.attempts()) for run in runs] == [1, 1]


def test_a_step_is_resolved_and_its_run_queued_again_in_one_write(app, task):
    run = task.enqueue(1)
    (claim,) = claimed(app, run)
    place = (claim.run_id, claim.claim_number)
    app.store.apply([BeginStep(*place, "charge", "step", None, None)])
    settle(app.store, settle_op(claim, "lost", Finish(State.INTERRUPTED, "step"), error=BOOM))

    run.resolve(done=True, result="paid", reason="looked it up")

    assert app.separate_commits.failures == []
    assert run.state == "queued"
    assert [(step.name, step.done, step.result) for step in run.steps()] == [
        ("charge", True, '"paid"')
    ]
    assert acts_on(app, run.id) == ["call step charge done", "redrive"]


def _named(name: str) -> Callable[[], None]:
    """Return a function that a task can be made of, as one of another module."""

    def function() -> None: ...

    function.__module__, function.__qualname__ = name.split(":")
    return function

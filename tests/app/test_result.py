"""The return value of `result()`, and its errors for runs that did not succeed."""

import asyncio
import time

import pytest

from duly import (
    Discard,
    Duly,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    RunNotFound,
    TaskNotRegistered,
)
from duly.clock import new_id
from duly.core.states import State
from duly.core.verdict import Finish
from duly.errors import RunNotFinal
from duly.store.ops.runs import ClaimRuns, Settle, Settled, Want
from duly.store.ops.upkeep import RegisterWorker


@pytest.fixture
def double(app: Duly):
    """A task that succeeds, fails or discards itself, depending on its argument."""

    @app.task(name="double")
    def double(number: int, end: str = "return") -> int:
        if end == "raise":
            message = f"no {number}"
            raise ValueError(message)
        if end == "discard":
            raise Discard("not needed")
        return number * 2

    return double


def settle_as(app: Duly, state: State, cause: str, outcome: str) -> None:
    """Claim the only ready run and settle it."""
    worker_id = new_id()
    app.store.do(RegisterWorker(worker_id, "host", 1, 15.0, "[]", '["double"]'))
    claims = app.store.do(ClaimRuns(worker_id, (Want(None, "thread", 1),), ("double",)))
    (claim,) = claims
    op = Settle(claim.run_id, claim.claim_number, outcome, Finish(state, cause), 0)
    assert app.store.apply([op]) == [Settled.DONE]


def test_a_result_is_the_return_value_of_the_task(app, double):
    run = double.enqueue(21)
    app.worker().drain(timeout=20)

    assert run.result(timeout=5) == 42
    assert asyncio.run(run.aresult(timeout=5)) == 42
    assert app.runs.get(run.id).result(timeout=0) == 42


def test_a_result_waits_until_the_run_ends(app, double):
    with app.worker():
        run = double.enqueue(4)

        assert run.result(timeout=20) == 8


def test_aresult_waits_without_blocking_the_event_loop(app, double):
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.005)

    async def wait():
        counting = asyncio.create_task(count())
        run = await double.using(delay=0.1).aenqueue(4)
        result = await run.aresult(timeout=20)
        counting.cancel()
        return result

    with app.worker():
        assert asyncio.run(wait()) == 8
    assert turns > 5


def test_the_timeout_error_of_a_result_contains_the_state_of_the_run(app, double):
    run = double.enqueue(1)

    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=f"run {run.id} is still queued after 0.05 s"):
        run.result(timeout=0.05)
    with pytest.raises(TimeoutError, match="still queued"):
        asyncio.run(run.aresult(timeout=0.05))

    assert time.monotonic() - begun < 5


def test_a_result_with_a_timeout_of_zero_checks_once(double):
    with pytest.raises(TimeoutError):
        double.enqueue(1).result(timeout=0)


def test_the_result_of_a_failed_run_raises_the_error_of_its_last_attempt(app, double):
    run = double.enqueue(7, end="raise")
    app.worker().drain(timeout=20)

    with pytest.raises(RunFailed, match="ValueError: no 7") as caught:
        run.result(timeout=5)

    assert (caught.value.run_id, caught.value.cause) == (run.id, "raised")
    with pytest.raises(RunFailed):
        asyncio.run(run.aresult(timeout=5))


def test_the_result_of_a_discarded_run_raises_run_cancelled(app, double):
    run = double.enqueue(7, end="discard")
    app.worker().drain(timeout=20)

    with pytest.raises(RunCancelled, match="discarded") as caught:
        run.result(timeout=5)

    assert (caught.value.run_id, caught.value.cause) == (run.id, "discarded")


def test_the_result_of_a_cancelled_run_raises_run_cancelled(double):
    run = double.enqueue(7)

    assert run.cancel() == "cancelled"

    with pytest.raises(RunCancelled) as caught:
        run.result(timeout=5)
    assert caught.value.cause == "requested"


def test_the_result_of_an_interrupted_run_raises_run_interrupted_with_advice(app, double):
    run = double.enqueue(7)
    settle_as(app, State.INTERRUPTED, "crashed", "lost")

    with pytest.raises(RunInterrupted, match="may have had its effect; find out") as caught:
        run.result(timeout=5)

    assert (caught.value.run_id, caught.value.cause) == (run.id, "crashed")


def test_a_result_can_be_read_in_a_process_without_its_task(app, double, store_url):
    run = double.enqueue(21)
    app.worker().drain(timeout=20)

    elsewhere = Duly(store_url)
    try:
        assert elsewhere.runs.get(run.id).result(timeout=5) == 42
    finally:
        elsewhere.close()


def test_an_unknown_run_is_not_found(app):
    unknown = new_id()

    for act in (app.runs.get, app.runs.cancel, app.runs.retry):
        with pytest.raises(RunNotFound, match=unknown):
            act(unknown)
    assert app.store.list_audit_entries(None, 10) == []


def test_a_second_cancel_returns_the_current_state(app, double):
    run = double.enqueue(1)

    assert [run.cancel(reason="no need"), run.cancel(), app.runs.cancel(run.id)] == [
        "cancelled",
        "cancelled",
        "cancelled",
    ]
    assert [act.reason for act in app.store.list_audit_entries(run.id, 10)] == ["no need"]


def test_cancelling_a_succeeded_run_changes_nothing(app, double):
    run = double.enqueue(1)
    app.worker().drain(timeout=20)

    assert run.cancel() == "succeeded"
    assert run.refresh().state == "succeeded"


def test_a_live_run_cannot_be_retried(double):
    with pytest.raises(RunNotFinal, match="is queued"):
        double.enqueue(1).retry()


def test_a_final_run_can_be_retried_with_the_same_id(app, double):
    run = double.enqueue(7, end="raise")
    app.worker().drain(timeout=20)

    run.retry(arguments=((7,), {}), actor="ann", reason="bug fixed")
    assert (run.state, run.record.generation, run.record.attempt) == ("queued", 2, 1)
    app.worker().drain(timeout=20)

    assert run.result(timeout=5) == 14
    assert [a.outcome for a in run.attempts()] == ["raised", "returned"]
    assert [a.claim_number for a in run.attempts()] == [1, 2]
    (act,) = app.store.list_audit_entries(run.id, 10)
    assert (act.actor, act.act, act.reason) == ("ann", "edit and redrive", "bug fixed")


def test_a_retry_with_new_arguments_is_refused_in_a_process_without_the_task(
    app, double, store_url
):
    run = double.enqueue(7, end="raise")
    app.worker().drain(timeout=20)

    elsewhere = Duly(store_url)
    try:
        with pytest.raises(TaskNotRegistered):
            elsewhere.runs.retry(run.id, arguments=((8,), {}))
    finally:
        elsewhere.close()
    assert run.refresh().state == "failed"

"""`duly.extend`: what code of other systems is told, and what it can check and report."""

import asyncio
import logging
import sys
import threading
from datetime import timedelta

import pytest

from duly import BadOption, Duly, Retry, RetryAfter, current
from duly.core.record import Claim
from duly.core.states import State
from duly.core.verdict import Finish, Requeue
from duly.events import AttemptEnded
from duly.extend import (
    EndedAttempt,
    ResendPolicy,
    check_worker_settings,
    on_attempt_end,
    report_error,
    run_in_thread,
)
from duly.observe.log_setup import LineFormatter


@pytest.fixture
def ended(app: Duly) -> list[EndedAttempt]:
    """The attempts that a subscriber was told about."""
    told: list[EndedAttempt] = []
    on_attempt_end(app, told.append)
    return told


def test_a_subscriber_is_told_about_each_attempt(app, ended):
    @app.task(name="pay", retries=Retry(1, base=0.0), queue="money", redact=("card",))
    def pay(card: str) -> str:
        if current().attempt == 1:
            raise ValueError(f"the bank refused {card}")
        return "paid"

    run = pay.using(tags={"shop": "one"}).enqueue("4242")
    with app.worker():
        run.result(timeout=30)

    first, second = ended
    assert (first.run_id, first.task, first.queue) == (run.id, "pay", "money")
    assert (first.attempt, first.outcome, first.state) == (1, "raised", "queued")
    assert (second.attempt, second.outcome, second.state) == (2, "returned", "succeeded")
    assert (first.retries_used, second.retries_used) == (0, 1)
    assert (first.is_final, second.is_final) == (False, True)
    assert first.error == "ValueError: the bank refused ***"
    assert first.traceback is not None
    assert "4242" not in first.traceback
    assert (second.error, second.traceback) == (None, None)
    assert first.tags == second.tags == {"shop": "one"}
    assert second.duration >= timedelta()
    assert second.waited is not None


def test_a_subscriber_that_calls_exit_ends_no_thread_of_the_worker(app, monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    on_attempt_end(app, lambda _: sys.exit("the bank is gone"))
    told: list[EndedAttempt] = []
    on_attempt_end(app, told.append)
    work = app.task(name="work")(lambda: None)

    with app.worker():
        for _ in range(2):  # The second one needs the thread that called the subscribers.
            work.enqueue().result(timeout=30)

    assert [each.outcome for each in told] == ["returned", "returned"]
    assert {str(each.exc_value) for each in reported} == {
        "a subscriber called sys.exit('the bank is gone'), which does not end the process here"
    }


def test_a_subscriber_gets_the_traceback_of_an_attempt_that_planned_its_retry(app, ended):
    @app.task(name="poll", retries=1)
    def poll() -> None:
        if len(ended) == 0:
            raise RetryAfter(0, "the bank is busy")

    run = poll.enqueue()
    app.worker().drain(timeout=30)

    assert ended[0].traceback == run.attempts()[0].traceback


def test_an_error_in_a_subscriber_affects_neither_the_run_nor_others(app, monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    on_attempt_end(app, lambda _: 1 / 0)
    told: list[EndedAttempt] = []
    on_attempt_end(app, told.append)

    run = app.task(name="work")(lambda: None).enqueue()
    app.worker().drain(timeout=30)

    assert run.refresh().state == "succeeded"
    assert [each.exc_type for each in reported] == [ZeroDivisionError]
    assert [each.run_id for each in told] == [run.id]


def test_a_claim_that_was_handed_back_is_not_an_attempt(untouched):
    told: list[EndedAttempt] = []
    on_attempt_end(untouched, told.append)
    claim = Claim("run", 1, "work", "default", "thread", 0, 0, 1, 0, 0, 0, False, None, "[[],{}]")
    again = Requeue(0.0, 1, 0, 0, "thread", recorded=False)

    untouched.bus.emit(AttemptEnded(claim, "handed_back", again, 0, None))
    untouched.bus.emit(AttemptEnded(claim, "returned", Finish(State.SUCCEEDED), 0, None))

    assert [each.outcome for each in told] == ["returned"]


def test_a_reported_error_is_logged_with_its_traceback(untouched, caplog):
    def connect() -> None:
        raise OSError("no route to host")

    with caplog.at_level(logging.ERROR, logger="duly"):
        try:
            connect()
        except OSError as error:
            report_error(untouched, "the mailer", error)

    (line,) = caplog.messages
    assert "the mailer" in line
    assert "no route to host" in line
    (record,) = caplog.records
    shown = LineFormatter().format(record)
    assert "Traceback (most recent call last)" in shown
    assert "in connect" in shown


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"beat": 60.0}, {"conkurrency": 2}])
def test_wrong_settings_of_a_worker_are_refused_before_the_database_is_opened(untouched, wrong):
    check_worker_settings(untouched, concurrency=2)

    with pytest.raises(BadOption, match=next(iter(wrong))):
        check_worker_settings(untouched, **wrong)


@pytest.mark.parametrize("wrong", [{"first_resend_after": 0}, {"max_sends": 1}, {"max_sends": 2.5}])
def test_an_impossible_resend_policy_is_refused(wrong):
    with pytest.raises(BadOption, match=next(iter(wrong))):
        ResendPolicy(**wrong)


def test_a_function_in_a_thread_returns_its_result_or_raises_its_error():
    async def check() -> None:
        assert await run_in_thread(lambda: threading.current_thread().name) != "MainThread"
        with pytest.raises(ZeroDivisionError):
            await run_in_thread(lambda: 1 / 0)

    asyncio.run(check())


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(), asyncio.CancelledError()])
def test_a_coroutine_gets_every_exception_of_its_function_in_a_thread(error):
    def act() -> None:
        raise error

    async def check() -> BaseException:
        try:
            await run_in_thread(act)
        except BaseException as raised:  # noqa: BLE001 - whichever it is
            return raised

    raised = asyncio.run(check())

    # Python turns a StopIteration that leaves a coroutine into a RuntimeError.
    assert error in (raised, raised.__cause__)


def test_a_function_in_a_thread_is_undone_after_its_coroutine_was_cancelled():
    has_begun, may_end, undone = threading.Event(), threading.Event(), threading.Event()
    results = []

    def act() -> str:
        has_begun.set()
        assert may_end.wait(30)
        return "started"

    def undo(result: str) -> None:
        results.append(result)
        undone.set()

    async def check() -> None:
        waiting = asyncio.create_task(run_in_thread(act, undo=undo))
        assert await asyncio.to_thread(has_begun.wait, 30)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(check())
    may_end.set()

    assert undone.wait(30)
    assert results == ["started"]

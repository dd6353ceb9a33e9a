"""A step that was called without `await` did not run, so its attempt fails."""

import asyncio
import gc
from unittest import mock

import pytest

import duly
from duly import Retry, open_steps
from duly.errors import NoCurrentRun
from duly.worker.inline_worker import InlineWorker

ran: list[str] = []


# Python warns of them, too, when it removes them.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


@pytest.fixture(autouse=True)
def _remove_what_was_left():
    """No step of an earlier test has run, and Python warns within the test."""
    ran.clear()
    yield
    gc.collect()


def note(what: str) -> str:
    ran.append(what)
    return what


async def forget_a_step():
    duly.astep("charge", note, "charge")


async def forget_a_step_among_others():
    await duly.astep("reserve", note, "reserve")
    left = [duly.astep(name, note, name) for name in ("charge", "ship")]
    assert left


async def forget_a_sleep():
    duly.asleep("night", 60)


async def forget_an_event():
    duly.await_for("paid", timeout=60)


async def forget_children():
    duly.agather([])


def forget_in_a_thread():
    duly.astep("charge", note, "charge")


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        (forget_a_step, "astep('charge')"),
        (forget_a_step_among_others, "astep('charge'), astep('ship')"),
        (forget_a_sleep, "asleep('night')"),
        (forget_an_event, "await_for('paid')"),
        (forget_children, "agather(…)"),
        (forget_in_a_thread, "astep('charge')"),
    ],
)
def test_a_call_without_await_fails_the_attempt(app, body, calls):
    run = app.task(name="body")(body).enqueue()

    app.worker().drain(timeout=20)

    (attempt,) = run.attempts()
    assert run.refresh().state == "failed"
    assert attempt.error == (
        f"duly.errors.StepNotAwaited: the task called {calls} without await, so the step did not "
        "run; write `await` before the call"
    )
    assert "charge" not in ran


@pytest.mark.stores("sqlite-wal")
def test_a_call_without_await_fails_the_attempt_in_a_test_of_the_application(app):
    run = app.task(name="body")(forget_a_step).enqueue()

    InlineWorker(app.store, app.registry, app.bus).drain()

    assert run.refresh().state == "failed"


@pytest.mark.stores("sqlite-wal")
def test_a_call_without_await_fails_the_attempt_in_a_process(shop):
    run = shop.forget_a_step_in_process.enqueue()

    shop.app.worker().drain(timeout=20)

    assert "StepNotAwaited: the task called astep('charge')" in run.attempts()[0].error


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("is_async", [True, False])
def test_the_error_of_a_call_without_await_hides_the_secrets_of_the_arguments(app, is_async):
    async def charge(card: str) -> None:
        duly.astep(f"charge {card}", note, card)

    def charge_in_a_thread(card: str) -> None:
        duly.astep(f"charge {card}", note, card)

    body = charge if is_async else charge_in_a_thread
    run = app.task(name="charge", redact=("card",))(body).enqueue(card="4111-1111")
    app.worker().drain(timeout=20)

    (attempt,) = run.attempts()
    assert "StepNotAwaited" in attempt.error
    assert "4111" not in attempt.error + attempt.traceback


@pytest.mark.stores("sqlite-wal")
def test_an_attempt_that_fails_anyway_keeps_its_own_error(app):
    @app.task(name="body", retries=Retry(0))
    async def body() -> None:
        duly.astep("charge", note, "charge").close()
        duly.astep("ship", note, "ship")
        raise OSError("no network")

    run = body.enqueue()
    app.worker().drain(timeout=20)

    assert run.attempts()[0].error == "OSError: no network"


@pytest.mark.stores("sqlite-wal")
def test_calls_that_are_awaited_in_other_ways_count(app):
    @app.task(name="body")
    async def body() -> list[str]:
        task = asyncio.create_task(duly.astep("one", note, "one"))
        both = await asyncio.gather(duly.astep("two", note, "two"), task)
        later = duly.astep("three", note, "three")
        many = [await duly.astep(f"n{number}", note, "n") for number in range(100)]
        ended = asyncio.create_task(duly.astep("four", note, "four"))
        ended.cancel()
        await asyncio.wait([ended])
        return [*both, await later, *many[:1]]

    run = body.enqueue()
    app.worker().drain(timeout=20)

    assert run.refresh().result() == ["two", "one", "three", "n"]
    assert "four" not in ran


def test_each_of_many_calls_is_checked_only_a_few_times(monkeypatch):
    looks: list[object] = []
    has_begun = open_steps.has_begun
    monkeypatch.setattr(open_steps, "has_begun", lambda it: looks.append(it) or has_begun(it))
    steps, calls = open_steps.OpenSteps(), [asyncio.sleep(0) for _ in range(2_000)]

    for call in calls:
        steps.note_call("asleep", call)

    assert len(steps.calls_without_await()) == 2_000
    assert len(looks) < 4 * 2_000


@pytest.mark.parametrize("name", ["astep", "asleep", "await_for", "agather"])
def test_a_mock_of_a_step_can_be_awaited(name):
    with mock.patch(f"duly.{name}") as mocked:
        assert isinstance(mocked, mock.AsyncMock)


@pytest.mark.stores("sqlite-wal")
def test_a_call_outside_a_task_raises_at_once(app):
    with pytest.raises(NoCurrentRun):
        duly.astep("charge", note, "charge")

"""Cancel is a request: a body that gives in, or can be ended, ends as cancelled."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from duly import Duly, RunCancelled, current
from tests.servers.processes import is_running, wait_until

pytestmark = pytest.mark.surface


@pytest.fixture
def entered() -> threading.Event:
    """Set by a body when it has begun."""
    return threading.Event()


def test_a_queued_run_is_cancelled_at_once_and_never_runs(app: Duly, entered):
    @app.task(name="body")
    def body() -> None:
        entered.set()

    now, later = body.enqueue(), body.using(delay=0.05).enqueue()

    assert now.cancel(actor="ann", reason="wrong order") == "cancelled"
    assert later.cancel() == "cancelled"
    app.worker().drain(timeout=20)

    assert [now.refresh().state, later.refresh().state] == ["cancelled", "cancelled"]
    assert not entered.is_set()
    assert now.attempts() == []
    assert now.record.error == "wrong order"


def test_a_running_coroutine_is_cancelled_at_its_await(app, entered):
    ended = threading.Event()

    @app.task(name="body", retries=5)
    async def body() -> None:
        entered.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    with app.worker():
        run = body.enqueue()
        assert entered.wait(20)

        assert run.cancel(actor="ann") == "requested"

        with pytest.raises(RunCancelled):
            run.result(timeout=20)

    assert ended.is_set()
    assert (run.cause, run.record.attempt) == ("requested", 1)
    assert [attempt.outcome for attempt in run.attempts()] == ["cancelled"]
    assert [act.actor for act in app.store.list_audit_entries(run.id, 5)] == ["ann"]


def test_a_thread_gives_in_where_it_checks(app, entered):
    @app.task(name="body", retries=5)
    def body() -> None:
        entered.set()
        while True:
            try:
                current().check_cancelled()
            except Exception:  # noqa: BLE001 - the request must get past such code
                pytest.fail("except Exception caught the request")
            time.sleep(0.005)

    with app.worker():
        run = body.enqueue()
        assert entered.wait(20)
        assert run.cancel() == "requested"

        with pytest.raises(RunCancelled):
            run.result(timeout=20)

    assert run.cause == "requested"


def test_a_body_that_returns_all_the_same_has_succeeded(app, entered):
    go_on = threading.Event()

    @app.task(name="deaf")
    def deaf() -> str:
        entered.set()
        go_on.wait(20)
        return "done"

    with app.worker():
        run = deaf.enqueue()
        assert entered.wait(20)
        assert run.cancel() == "requested"
        wait_until(
            lambda: run.refresh().record.cancel_requested, seconds=20, what="the request is there"
        )
        go_on.set()

        assert run.result(timeout=20) == "done"


def test_a_body_that_raises_after_the_request_is_cancelled_and_not_retried(app, entered):
    heard = threading.Event()

    @app.task(name="body", retries=5)
    def body() -> None:
        entered.set()
        try:
            while True:
                current().check_cancelled()
                time.sleep(0.005)
        except BaseException:  # noqa: BLE001 - clean-up code that catches everything
            heard.set()
            message = "cleaning up went wrong"
            raise OSError(message) from None

    with app.worker():
        run = body.enqueue()
        assert entered.wait(20)
        run.cancel()

        with pytest.raises(RunCancelled):
            run.result(timeout=20)

    assert heard.is_set()
    assert run.record.attempt == 1


def test_a_cancel_between_two_attempts_ends_the_run(app):
    @app.task(name="flaky", retries=5)
    def flaky() -> None:
        raise ValueError

    run = flaky.enqueue()
    with app.worker():
        wait_until(lambda: run.refresh().record.attempt == 2, seconds=20, what="the first failure")
        assert run.cancel() == "cancelled"

    assert (run.refresh().state, len(run.attempts())) == ("cancelled", 1)


@pytest.mark.stores("sqlite-wal", "postgres")
@pytest.mark.parametrize("task", ["process_waits", "process_checks"])
def test_a_subprocess_is_ended(shop, tmp_path: Path, task):
    started = tmp_path / "started"
    with shop.app.worker(concurrency=1):
        run = getattr(shop, task).enqueue(str(started))
        wait_until(started.exists, seconds=40, what="the body begins")
        assert run.cancel() == "requested"
        with pytest.raises(RunCancelled):
            run.result(timeout=20)
        pid = int(started.read_text())
        assert task == "process_checks" or not is_running(pid)
        # The runner goes on with the next one.
        assert shop.in_process.enqueue(1).result(timeout=30)["value"] == 1


def test_a_cancel_reaches_the_run_it_names_alone(app):
    gates = {name: threading.Event() for name in ("a", "b")}

    @app.task(name="body")
    async def body(name: str) -> str:
        gates[name].set()
        await asyncio.sleep(0.01 if name == "done" else 600)
        return name

    with app.worker(grace=0):
        first, second = body.enqueue("a"), body.enqueue("b")
        assert gates["a"].wait(20)
        assert gates["b"].wait(20)
        first.cancel()

        with pytest.raises(RunCancelled):
            first.result(timeout=20)
        assert second.refresh().state == "running"

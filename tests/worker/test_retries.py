"""Retries: how often, when, after what, and what a body may say about it itself."""

import itertools
import threading
import time

import pytest

from duly import Discard, Duly, Retry, RetryAfter, RunFailed, Snooze, current, sleep
from duly.store.ops.upkeep import Tick
from tests.servers.processes import wait_until
from tests.worker import shop

pytestmark = pytest.mark.surface


def quickly(limit: int, **options) -> Retry:
    """Return a policy of short, certain delays."""
    return Retry(limit, **{"base": 0.05, "factor": 1, "jitter": False} | options)


def outcomes(run) -> list[tuple[int, str]]:
    """Return (attempt, outcome) of every ended attempt."""
    return [(a.attempt, a.outcome) for a in run.attempts()]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_failing_body_is_tried_again_with_growing_attempts(app: Duly, kind):
    tries: list[tuple[int, int]] = []

    def fail_twice() -> str:
        tries.append((current().attempt, current().fence))
        if current().attempt < 3:
            message = "not yet"
            raise ValueError(message)
        return "at last"

    if kind == "def":

        @app.task(name="flaky", retries=quickly(5))
        def flaky() -> str:
            return fail_twice()
    else:

        @app.task(name="flaky", retries=quickly(5))
        async def flaky() -> str:
            return fail_twice()

    with app.worker():
        run = flaky.enqueue()
        assert run.result(timeout=20) == "at last"

    assert tries == [(1, 1), (2, 2), (3, 3)]
    assert outcomes(run) == [(1, "raised"), (2, "raised"), (3, "returned")]
    assert run.record.retries_used == 2


def test_retries_are_counted_after_the_first_try(app):
    tries = []

    @app.task(name="hopeless", retries=quickly(2, base=0.0))
    def hopeless() -> None:
        tries.append(current().attempt)
        raise ValueError

    with app.worker(), pytest.raises(RunFailed):
        hopeless.enqueue().result(timeout=20)

    assert tries == [1, 2, 3]


def test_without_retries_one_failure_is_final(app):
    @app.task(name="once")
    def once() -> None:
        message = "no second chance"
        raise RuntimeError(message)

    run = once.enqueue()
    app.worker().drain(timeout=20)

    assert (run.refresh().state, run.cause) == ("failed", "raised")
    assert run.record.error == "RuntimeError: no second chance"
    assert "raise RuntimeError(message)" in run.record.traceback
    assert outcomes(run) == [(1, "raised")]


def test_no_attempt_begins_before_its_back_off_is_over(app):
    begun: list[float] = []

    @app.task(name="flaky", retries=Retry(3, base=0.05, factor=2, jitter=False))
    def flaky() -> None:
        begun.append(time.monotonic())
        raise ValueError

    with app.worker(), pytest.raises(RunFailed):
        flaky.enqueue().result(timeout=20)

    pauses = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert len(pauses) == 3
    for pause, least in zip(pauses, (0.05, 0.1, 0.2), strict=True):
        assert pause >= least


def test_a_run_in_back_off_is_queued_with_its_time_and_error(app):
    @app.task(name="flaky", retries=Retry(3, base=60, jitter=False))
    def flaky() -> None:
        message = "no"
        raise ValueError(message)

    run = flaky.enqueue()
    with app.worker():
        wait_until(lambda: run.refresh().record.attempt == 2, seconds=20, what="the first failure")

    record = run.refresh().record
    (attempt,) = run.attempts()
    assert (record.state, record.retries_used, record.claim_number) == ("queued", 1, 1)
    assert 59.9e6 <= record.due_at - attempt.finished_at <= 60.1e6
    assert (attempt.outcome, attempt.error) == ("raised", "ValueError: no")
    assert attempt.worker_id is not None
    assert attempt.started_at <= attempt.finished_at


def test_a_restart_in_back_off_goes_on_with_the_right_attempt_at_the_right_time(app, store_url):
    begun: list[tuple[int, float]] = []

    def define(app: Duly):
        @app.task(name="flaky", retries=Retry(5, base=0.6, factor=1, jitter=False))
        def flaky() -> int:
            begun.append((current().attempt, time.monotonic()))
            if current().attempt < 3:
                raise ValueError
            return current().attempt

        return flaky

    run = define(app).enqueue()
    with app.worker():
        wait_until(lambda: run.refresh().record.attempt == 2, seconds=20, what="the first failure")
    app.close()
    restarted = Duly(store_url)
    define(restarted)
    with restarted.worker():
        assert restarted.runs.get(run.id).result(timeout=20) == 3
    restarted.close()

    assert [attempt for attempt, _ in begun] == [1, 2, 3]
    assert begun[1][1] - begun[0][1] >= 0.6
    assert begun[2][1] - begun[1][1] >= 0.6


class TestWhichExceptions:
    """`Retry(on=…)` and `Retry(give_up_on=…)`."""

    @pytest.fixture
    def tries(self, app):
        """Runs a task that raises what it is given; returns how often it was tried."""

        def run(error: type[BaseException], on_crash="rerun", **policy) -> int:
            counted, retry = 0, quickly(2, base=0.0, **policy)

            @app.task(name=f"raise{error.__name__}", retries=retry, on_crash=on_crash)
            def body() -> None:
                nonlocal counted
                counted += 1
                raise error

            with app.worker(), pytest.raises(RunFailed):
                body.enqueue().result(timeout=20)
            return counted

        return run

    def test_only_what_is_named_is_retried(self, tries):
        assert tries(ConnectionResetError, on=(ConnectionError,)) == 3
        assert tries(ValueError, on=(ConnectionError,)) == 1

    def test_what_is_given_up_on_is_not_retried(self, tries):
        assert tries(PermissionError, give_up_on=(PermissionError,)) == 1
        assert tries(TimeoutError, give_up_on=(PermissionError,)) == 3

    def test_giving_up_beats_retrying(self, tries):
        policy = {"on": (OSError,), "give_up_on": (PermissionError,)}

        assert tries(PermissionError, **policy) == 1

    def test_a_hold_task_retries_only_what_is_named(self, tries):
        policy = {"on": (ConnectionError,)}

        assert tries(ConnectionError, on_crash="hold", **policy) == 3
        assert tries(ValueError, on_crash="hold", **policy) == 1


class TestWhatABodySays:
    """Snooze, RetryAfter and Discard."""

    def test_a_snooze_costs_no_attempt(self, app):
        seen: list[tuple[int, int, float]] = []

        @app.task(name="patient")
        def patient() -> str:
            seen.append((current().attempt, current().fence, time.monotonic()))
            if current().fence < 4:
                raise Snooze(0.05)
            return "awake"

        with app.worker():
            run = patient.enqueue()
            assert run.result(timeout=20) == "awake"

        assert [(attempt, fence) for attempt, fence, _ in seen] == [(1, 1), (1, 2), (1, 3), (1, 4)]
        assert seen[1][2] - seen[0][2] >= 0.05
        assert outcomes(run) == [(1, "snoozed")] * 3 + [(1, "returned")]
        assert run.record.retries_used == 0

    def test_retry_after_uses_a_retry_at_its_own_time(self, app):
        begun: list[float] = []

        @app.task(name="limited", retries=Retry(1, base=3600))
        def limited() -> str:
            begun.append(time.monotonic())
            if len(begun) == 1:
                raise RetryAfter(0.1, "429")
            return "ok"

        with app.worker():
            run = limited.enqueue()
            assert run.result(timeout=20) == "ok"

        assert begun[1] - begun[0] >= 0.1
        assert (run.record.attempt, run.record.retries_used) == (2, 1)
        assert "429" in run.attempts()[0].error

    def test_retry_after_without_a_retry_left_fails(self, app):
        @app.task(name="limited")
        def limited() -> None:
            raise RetryAfter(0.1)

        run = limited.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "failed"

    def test_a_discard_ends_the_run_as_cancelled(self, app):
        @app.task(name="obsolete", retries=5)
        def obsolete() -> None:
            raise Discard("the order is gone")

        run = obsolete.enqueue()
        app.worker().drain(timeout=20)

        assert (run.refresh().state, run.cause) == ("cancelled", "discarded")
        assert "the order is gone" in run.record.error
        assert outcomes(run) == [(1, "cancelled")]

    @pytest.mark.parametrize("kind", ["def", "async def"])
    @pytest.mark.parametrize("seconds", ["soon", None, float("nan"), 1e300, float("inf"), -5])
    def test_a_time_that_is_none_fails_the_attempt_and_not_the_worker(self, app, kind, seconds):
        if kind == "def":

            @app.task(name="odd")
            def odd() -> None:
                if current().fence == 1:
                    raise Snooze(seconds)
        else:

            @app.task(name="odd")
            async def odd() -> None:
                if current().fence == 1:
                    raise Snooze(seconds)

        @app.task(name="sound")
        def sound() -> str:
            return "still here"

        @app.task(name="sound_async")
        async def sound_async() -> str:
            return "still here"

        with app.worker(concurrency=1, async_limit=1):
            run = odd.enqueue()
            wait_until(lambda: run.refresh().is_final, seconds=20, what="the odd run ends")
            assert sound.enqueue().result(timeout=20) == "still here"
            assert sound_async.enqueue().result(timeout=20) == "still here"

        assert run.state == "failed"
        assert "Snooze must be from 0 to" in run.record.error

    def test_retry_after_an_instant_in_the_past_retries_at_once(self, app):
        @app.task(name="late", retries=1)
        def late() -> str:
            if current().attempt == 1:
                raise RetryAfter(-5)
            return "done"

        run = late.enqueue()
        app.worker().drain(timeout=20)

        assert run.result(timeout=1) == "done"


@pytest.mark.stores("sqlite-wal")
def test_bodies_in_subprocesses_say_the_same(store_url):
    shop.app.use_url(store_url)
    ends = ("raise", "exit", "snooze", "later", "discard", "far", "fine")
    runs = {how: shop.process_ends.enqueue(how) for how in ends}
    with shop.app.worker(concurrency=2, grace=0):
        for run in runs.values():
            wait_until(lambda run=run: run.refresh().is_final, seconds=40, what="the end")
    try:
        assert outcomes(runs["raise"]) == [(1, "raised"), (2, "raised"), (3, "raised")]
        assert "LookupError: no luck" in runs["raise"].record.error
        assert "process_ends" in runs["raise"].record.traceback
        assert "SystemExit: 3" in runs["exit"].record.error
        assert outcomes(runs["snooze"]) == [(1, "snoozed"), (1, "returned")]
        assert outcomes(runs["later"]) == [(1, "raised"), (2, "returned")]
        assert (runs["discard"].state, runs["discard"].cause) == ("cancelled", "discarded")
        assert runs["far"].state == "failed"
        assert "fraction from 0 to 1" in runs["far"].record.error
        assert runs["fine"].result() == "fine"
    finally:
        shop.app.close()


def test_a_run_that_expired_before_it_started_is_cancelled(app):
    ran = threading.Event()

    @app.task(name="late")
    def late() -> None:
        ran.set()

    run = late.using(expires=0.02).enqueue()
    wait_until(lambda: app.store.now() > run.record.expires_at, seconds=20, what="it has expired")
    with app.worker():
        wait_until(lambda: run.refresh().is_final, seconds=20, what="it ends")

    assert (run.state, run.cause) == ("cancelled", "expired")
    assert not ran.is_set()
    assert run.attempts() == []


@pytest.mark.parametrize("then", ["ends", "fails once", "snoozes", "sleeps"])
def test_a_run_that_started_in_time_may_go_on_past_its_expiry(app, tables, then):
    begun, may_end = threading.Event(), threading.Event()

    @app.task(name="slow", retries=quickly(1))
    def slow() -> str:
        begun.set()
        assert may_end.wait(20)
        if then == "fails once" and current().attempt == 1:
            raise LookupError(then)
        if then == "snoozes" and current().fence == 1:
            raise Snooze(0.05)
        if then == "sleeps":
            sleep("nap", 0.05)
        return "done"

    run = slow.using(expires=3600).enqueue()
    with app.worker():
        assert begun.wait(20)
        tables.execute("UPDATE duly_runs SET expires_at = created_at")
        app.store.do(Tick(100))
        may_end.set()

        assert run.result(timeout=20) == "done"

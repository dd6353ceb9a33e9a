"""The harness controls time, simulates crashes at fault points and asserts enqueued runs."""

from datetime import timedelta

import pytest

from duly import BadOption, Retry, current, sleep
from duly.testing import Harness


def test_the_arguments_and_result_of_a_run_pass_through_the_codec(harness: Harness, app):
    @app.task(name="double")
    def double(number: int) -> int:
        return number * 2

    run = double.enqueue(21)

    assert harness.drain() == 1
    assert run.result(timeout=0) == 42
    with pytest.raises(TypeError):
        double.enqueue(object())


def test_a_delayed_run_waits_until_it_is_due(harness, app):
    ran = []

    @app.task(name="later")
    def later() -> None:
        ran.append(1)

    later.using(delay=3600).enqueue()

    assert harness.drain() == 0
    harness.advance(3599)
    assert harness.drain() == 0
    harness.advance(timedelta(seconds=1))
    assert (harness.drain(), ran) == (1, [1])


def test_retries_wait_for_the_time_of_the_harness(harness, app):
    @app.task(name="flaky", retries=Retry(2, base=60, factor=2, jitter=False))
    def flaky() -> int:
        if current().attempt < 3:
            raise OSError("no route")
        return current().attempt

    run = flaky.enqueue()
    attempts = [harness.drain()]
    for seconds in (59, 1, 119, 1):
        harness.advance(seconds)
        attempts.append(harness.drain())

    assert attempts == [1, 0, 1, 0, 1]
    assert run.result(timeout=0) == 3


def test_a_durable_sleep_and_a_schedule_use_the_time_of_the_harness(harness, app):
    slept, ticks = [], []

    @app.task(name="nap")
    def nap() -> None:
        sleep("rest", 3600)
        slept.append(1)

    @app.every(hours=1, name="hourly")
    def hourly() -> None:
        ticks.append(1)

    nap.enqueue()
    harness.drain()
    for _ in range(3):
        harness.advance(timedelta(hours=1))
        harness.drain()

    assert (len(slept), len(ticks)) == (1, 3)


def test_a_schedule_that_missed_many_instants_runs_the_latest(harness, app):
    ran = []

    @app.task(name="tidy")
    def tidy() -> None:
        ran.append(1)

    app.schedules.add("tidy", tidy, cron="* * * * *")
    harness.advance(30 * 86_400)

    assert harness.drain() == 1
    assert len(ran) == 1


@pytest.mark.parametrize(
    ("point", "effects"),
    [
        ("claim.before_commit", 1),
        ("claim.after_commit", 1),
        ("attempt.before_body", 1),
        ("attempt.after_body", 2),
        ("settle.before_commit", 2),
        ("settle.after_commit", 1),
    ],
)
def test_a_crash_at_a_fault_point_is_recovered_after_the_lease(harness, app, point, effects):
    done = []

    @app.task(name="work")
    def work() -> None:
        done.append(1)

    run = work.enqueue()
    with harness.crash_at(point):
        harness.drain()
    harness.advance(14)
    harness.drain()
    before = len(done)
    harness.advance(1)
    harness.drain()

    assert (run.refresh().state, len(done)) == ("succeeded", effects)
    is_held = point not in {"claim.before_commit", "settle.after_commit"}
    assert before == (effects - 1 if is_held else effects)


def test_a_crash_interrupts_a_task_with_hold_and_rolls_back_a_transaction(harness, app):
    done = []

    @app.task(name="hold", on_crash="hold")
    def hold() -> None:
        done.append("held")

    @app.task(name="whole", transaction=True)
    def whole() -> None:
        current().connection.execute("SELECT 1")
        other.enqueue()

    @app.task(name="other")
    def other() -> None:
        done.append("other")

    held = hold.enqueue()
    with harness.crash_at("settle.before_write"):
        harness.drain()
    harness.advance(15)
    harness.drain()
    run = whole.enqueue()
    with harness.crash_at("transaction.before_commit"):
        harness.drain()
    harness.refute_enqueued(other)
    harness.advance(15)
    harness.drain()

    assert (held.refresh().state, run.refresh().state) == ("interrupted", "succeeded")
    assert done == ["held", "other"]


def test_a_producer_can_crash_at_a_fault_point(harness, app):
    @app.task(name="work")
    def work() -> None: ...

    with harness.crash_at("enqueue.before_commit"):
        work.enqueue()
    harness.refute_enqueued(work)
    with harness.crash_at("enqueue.after_commit", hit=2):
        work.enqueue()
        work.enqueue()
        pytest.fail("the producer continued after its crash")

    harness.assert_enqueued(work, times=2)


def test_a_crash_that_did_not_happen_fails_the_test(harness, app):
    @app.task(name="work")
    def work() -> None: ...

    with (
        pytest.raises(
            AssertionError, match=r"nothing died at settle.before_commit: it was reached 0"
        ),
        harness.crash_at("settle.before_commit"),
    ):
        harness.drain()
    with (
        pytest.raises(BadOption, match=r"did you mean 'settle.before_commit'"),
        harness.crash_at("settle.befor_commit"),
    ):
        pass

    run = work.enqueue()
    harness.drain()
    assert run.refresh().state == "succeeded"


def test_an_enqueued_run_can_be_asserted_with_its_arguments(harness, app):
    @app.task(name="send")
    def send(order: int, *, email: str = "") -> None: ...

    first = send.enqueue(1, email="a@b.c")
    send.enqueue(2)
    harness.drain()

    assert harness.assert_enqueued(send)[0].id == first.id
    assert len(harness.assert_enqueued(send.call(1, email="a@b.c"), times=1)) == 1
    harness.refute_enqueued(send.call(3))
    with pytest.raises(
        AssertionError, match=r"send .*3.* at least once, but was enqueued 0 times; enqueued: "
    ):
        harness.assert_enqueued(send.call(3))


def test_the_time_of_the_harness_cannot_go_back(harness):
    with pytest.raises(BadOption, match="test cannot go back"):
        harness.advance(-1)

"""A fleet of real Celery workers runs duly's runs, with lease and fence, over a real Redis."""

import time
from contextlib import closing

import pytest
import redis

from duly import RunFailed
from duly.store.ops.carriers import PostponeHandOver
from tests.servers.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

WAIT = 40
ON_ONE = pytest.mark.stores("sqlite")
"""These tests are about Celery. The conformance suite tests handing over on every store."""


def outcomes(run) -> list[str]:
    """Return the outcomes of a run's attempts."""
    return [attempt.outcome for attempt in run.attempts()]


@ON_ONE
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_carried_runs_are_not_run_by_a_duly_worker(tasks, start_worker, counter, pool):
    start_worker("--pool", pool, "--concurrency", "2")
    runs = [tasks.pay.enqueue(number, counter.port) for number in range(5)]
    greeting = tasks.greet.using(delay=0.2).enqueue("ann")

    assert [run.result(timeout=WAIT) for run in runs] == [0, 1, 2, 3, 4]
    assert greeting.result(timeout=WAIT) == "hello ann, from celery"
    assert set(counter.count("ended").values()) == {1}


def test_a_duly_worker_hands_over_carried_runs_and_runs_only_its_own_tasks(tasks, counter):
    with tasks.app.worker():
        run = tasks.pay.enqueue(1, counter.port)
        assert tasks.ours.enqueue(7).result(timeout=WAIT) == 7
        wait_until(
            lambda: run.refresh().record.lane == "handed",
            seconds=WAIT,
            what="the run is handed over",
        )
        assert run.state == "queued"
        assert counter.effects("began") == []
    tasks.app.worker().drain(timeout=10)
    assert run.refresh().state == "queued"


@ON_ONE
def test_duly_retries_and_fails_carried_runs(tasks, start_worker, counter):
    start_worker()
    flaky, broken = tasks.flaky.enqueue(counter.port), tasks.broken.enqueue()

    assert flaky.result(timeout=WAIT) == 3
    with pytest.raises(RunFailed, match="no such order"):
        broken.result(timeout=WAIT)
    assert outcomes(flaky.refresh()) == ["raised", "raised", "returned"]
    assert [run.id for run in tasks.app.dead.list()] == [broken.id]


@ON_ONE
def test_time_limits_of_celery_do_not_reach_carried_runs(
    tasks, start_worker, counter, tmp_path, monkeypatch
):
    monkeypatch.setenv("SHOP_SOFT_LIMIT", "1")
    monkeypatch.setenv("SHOP_HARD_LIMIT", "2")
    gate = tmp_path / "gate"
    worker = start_worker()
    run = tasks.linger.enqueue(1, counter.port, str(gate))
    wait_until(lambda: counter.effects("began"), seconds=WAIT, what="the task begins")

    tasks.limited.apply_async(queue="fleet")  # Begins later, so its limits do.
    wait_until(
        lambda: "Hard time limit (2s) exceeded for limited" in worker.log.read_text(),
        seconds=WAIT,
        what="Celery's own task exceeds its limit",
    )
    gate.touch()

    ((_, pid),) = counter.effects("began")
    assert run.result(timeout=WAIT) == pid
    assert outcomes(run.refresh()) == ["returned"]
    assert "exceeded for duly.carry" not in worker.log.read_text()


@ON_ONE
def test_the_runs_of_schedules_are_carried(tasks, start_worker):
    start_worker()

    wait_until(
        lambda: len(tasks.app.runs.list(task=tasks.beat, state="succeeded")) >= 2,
        seconds=WAIT,
        what="two instants have run",
    )


@ON_ONE
def test_a_lost_message_is_sent_again_and_a_doubled_message_claims_nothing(
    tasks, start_worker, redis_url, counter
):
    with tasks.app.worker():
        run = tasks.pay.enqueue(1, counter.port)
        wait_until(
            lambda: run.refresh().record.lane == "handed",
            seconds=WAIT,
            what="the run is handed over",
        )
        with closing(redis.Redis.from_url(redis_url)) as client:
            wait_until(lambda: client.llen("fleet") == 1, seconds=WAIT, what="it is sent")
            assert client.delete("fleet") == 1, "the message is lost"
            # The message is stale at once, and is sent again before a worker has fetched it: it is
            # doubled.
            for count in (1, 2):
                tasks.app.store.do(PostponeHandOver((run.id,), 0))
                tasks.app.store.wake()
                wait_until(
                    lambda count=count: client.llen("fleet") == count,
                    seconds=WAIT,
                    what="it is sent again",
                )
        start_worker()
        assert run.result(timeout=WAIT) == 1
    time.sleep(0.5)
    assert counter.count("began") == {"1": 1}


def test_a_frozen_worker_cannot_finish_a_run_that_another_worker_has_taken_over(
    tasks, start_worker, counter, tmp_path, store_url
):
    gate = tmp_path / "gate"
    first = start_worker("--concurrency", "1", "--pool", "solo")
    run = tasks.linger.enqueue(1, counter.port, str(gate))
    wait_until(lambda: counter.effects("began"), seconds=WAIT, what="the task begins")
    ((_, frozen),) = counter.effects("began")
    first.freeze(store_url)
    second = start_worker("--concurrency", "1")
    gate.touch()
    winner = run.result(timeout=WAIT)
    first.thaw()

    wait_until(
        lambda: frozen in {pid for _, pid in counter.effects("ended")},
        seconds=WAIT,
        what="the thawed worker has its effect, too",
    )
    refused = f"run {run.id}: claim 1 was lost, so its result was dropped"
    wait_until(lambda: refused in first.log.read_text(), seconds=WAIT, what="it is refused")
    assert run.refresh().record.claim_number == 2
    assert run.result(timeout=WAIT) == winner != frozen
    assert outcomes(run) == ["lost", "returned"]
    second.stop()
    another = tasks.linger.enqueue(2, counter.port, str(gate))
    assert another.result(timeout=WAIT) == frozen, "the worker continues with other runs"


def test_a_run_that_must_not_begin_twice_is_interrupted_when_its_worker_is_killed(
    tasks, start_worker, counter, tmp_path
):
    worker = start_worker("--concurrency", "1")
    run = tasks.once.enqueue(1, counter.port, str(tmp_path / "gate"))
    wait_until(lambda: counter.effects("began"), seconds=WAIT, what="the task begins")
    worker.kill()
    start_worker("--concurrency", "1")

    wait_until(lambda: run.refresh().is_final, seconds=WAIT, what="the run is final")
    assert (run.state, run.cause) == ("interrupted", "crashed")
    assert len(counter.effects("began")) == 1

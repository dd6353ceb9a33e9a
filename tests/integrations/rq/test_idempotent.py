"""RQ jobs, carried by real workers over a real Redis, run once per key."""

import os
import signal
import sys

import pytest
import rq
from rq.job import JobStatus
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.results import Result
from rq.timeouts import TimerDeathPenalty

from duly.errors import BadOption, Busy
from duly.integrations.rq import idempotent
from tests.servers.freeze import freeze, thaw
from tests.servers.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.stores("sqlite")]
# The conformance suite and test_kills.py cover the behaviour that depends on the ledger.

WAIT = 40


def wait_for(counter, what: str, count: int = 1) -> None:
    """Wait until an effect was reported this many times."""
    wait_until(
        lambda: counter.count(what).total() >= count, seconds=WAIT, what=f"{count} times {what}"
    )


def test_equal_calls_run_once_and_all_return_the_result(shop, counter):
    shop.worker()
    jobs = [shop.send(shop.tasks.charge, 1), shop.queue.enqueue(shop.tasks.charge, order_id=1)]
    others = [shop.send(shop.tasks.charge, 2), shop.send(shop.tasks.charge, 1, "USD")]
    greetings = [shop.send(shop.tasks.greet, "ann") for _ in range(2)]

    assert [shop.result(job) for job in jobs] == [{"order": 1, "currency": "EUR"}] * 2
    assert [shop.result(job)["order"] for job in others] == [2, 1]
    assert [shop.result(job) for job in greetings] == ["hello ann"] * 2
    assert counter.count("charged") == {"1": 2, "2": 1}
    assert counter.count("greeted") == {"ann": 1}


def test_a_duplicate_of_a_running_job_is_postponed_and_gets_its_result(shop, counter):
    shop.worker()
    shop.worker("--verbose")
    first = shop.send(shop.tasks.linger, 1)
    wait_for(counter, "began")
    second = shop.send(shop.tasks.linger, 1, retries=1)

    wait_until(second.latest_result, seconds=WAIT, what="the job is postponed")
    assert second.latest_result().type == Result.Type.RETRIED
    assert second.get_status() == JobStatus.SCHEDULED
    shop.open_gate()

    assert shop.result(first) == shop.result(second)
    second.refresh()
    assert (second.retries_left, second.number_of_retries) == (1, 0)
    assert counter.count("began") == {"1": 1}


def test_a_worker_without_work_horses_runs_equal_jobs_once(shop, counter):
    worker = _Simple([shop.queue], connection=shop.queue.connection)
    tasks = shop.tasks
    jobs = [shop.send(tasks.charge, 1), shop.send(tasks.charge, 1), shop.send(tasks.greet, "ann")]
    flaky = shop.send(tasks.flaky, 2, 1, retries=3)
    with shop.guard.once(tasks.charge.key_for(3)):
        held = shop.send(tasks.charge, 3)
        worker.work(burst=True)

        assert held.get_status() == JobStatus.SCHEDULED

    assert [shop.result(job) for job in jobs] == [{"order": 1, "currency": "EUR"}] * 2 + [
        "hello ann"
    ]
    assert shop.result(flaky) == 2
    assert counter.count("charged") == {"1": 1}
    assert counter.count("tried") == {"2": 2}


class _Simple(rq.SimpleWorker):
    """Run jobs in this process, with a death penalty that is not RQ's own."""

    death_penalty_class = TimerDeathPenalty


def test_a_failing_job_is_retried_by_rq(shop, counter):
    shop.worker()
    job = shop.send(shop.tasks.flaky, 1, 2, retries=3)

    assert shop.result(job) == 1
    assert counter.count("tried") == {"1": 3}


def test_a_failed_job_may_run_again(shop, counter):
    shop.worker()
    job = shop.send(shop.tasks.flaky, 1, 9, retries=1)
    shop.wait_until_status(job, JobStatus.FAILED)
    job.requeue()

    wait_for(counter, "tried", 3)


def test_a_job_that_returns_a_retry_is_not_recorded_as_done(shop, counter):
    shop.worker()

    assert shop.result(shop.send(shop.tasks.asks_again, 1)) == 1
    assert counter.count("tried") == {"1": 3}


def test_a_guarded_call_inside_another_job_raises_busy_and_does_not_postpone_that_job(
    shop, counter
):
    shop.worker()
    shop.worker("--verbose")
    shop.send(shop.tasks.linger, 1)
    wait_for(counter, "began")

    assert shop.result(shop.send(shop.tasks.outer, 1)) == "Busy"
    shop.open_gate()


def test_a_synchronous_queue_raises_busy_instead_of_postponing(shop):
    queue = rq.Queue(connection=shop.queue.connection, is_async=False)
    key = shop.tasks.charge.key_for(1)

    with shop.guard.once(key):
        job = queue.enqueue(shop.tasks.charge, 1)
        with pytest.raises(Busy):
            shop.tasks.charge(1)

    assert job.get_status() == JobStatus.FAILED


def test_a_frozen_holder_cannot_finish(shop, counter, store_url):
    shop.worker()
    shop.worker("--verbose")
    first = shop.send(shop.tasks.linger, 1)
    wait_for(counter, "began")
    ((_, frozen),) = counter.effects("began")
    freeze(store_url, frozen)
    second = shop.send(shop.tasks.linger, 1)
    wait_for(counter, "began", 2)
    shop.open_gate()

    winner = shop.result(second)
    thaw(frozen)

    assert shop.result(first) == winner != frozen
    assert counter.count("ended") == {"1": 2}, (
        "the late job had its effect, and its result was refused"
    )


@pytest.mark.parametrize("retries", [0, 1])
def test_a_killed_work_horse_fails_its_job_unless_that_has_retries(shop, counter, retries):
    shop.worker()
    job = shop.send(shop.tasks.linger, 1, retries=retries)
    wait_for(counter, "began")
    ((_, horse),) = counter.effects("began")
    shop.open_gate()
    os.kill(horse, signal.SIGKILL)

    shop.wait_until_status(job, JobStatus.FINISHED, JobStatus.FAILED)
    assert job.get_status() == (JobStatus.FINISHED if retries else JobStatus.FAILED)
    assert counter.count("ended").total() == retries


@pytest.mark.parametrize("retries", [0, 1])
def test_the_job_of_a_killed_worker_is_abandoned_unless_it_has_retries(shop, counter, retries):
    worker = shop.worker("--verbose")
    job = shop.send(shop.tasks.linger, 1, retries=retries)
    wait_for(counter, "began")
    worker.kill()
    shop.open_gate()
    assert job.get_status(refresh=True) == JobStatus.STARTED
    # RQ's maintenance does this every ten minutes, for jobs without a heartbeat for a minute.
    StartedJobRegistry(queue=shop.queue).cleanup(timestamp=sys.maxsize)
    shop.worker()

    if retries:
        shop.result(job)
    assert FailedJobRegistry(queue=shop.queue).get_job_count() == 1 - retries
    assert counter.count("ended").total() == retries


def test_an_rq_version_that_cannot_postpone_jobs_is_refused(shop, monkeypatch):
    monkeypatch.delattr(rq.worker.BaseWorker, "handle_job_retry")

    with pytest.raises(BadOption, match="newer"):
        idempotent(shop.guard)

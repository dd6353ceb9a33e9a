"""A fleet of real RQ workers runs duly's runs, with lease and fence, over a real Redis."""

import sys

import pytest
import rq
from rq.registry import FailedJobRegistry

from duly import RunFailed
from duly.carrier import CarrierMessage
from duly.errors import AppNotFound, TaskNotRegistered
from duly.integrations.rq import RQCarrier, carry
from duly.store.ops.carriers import PostponeHandOver
from tests.integrations.rq.workers import APP
from tests.servers.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

WAIT = 40
PRELOAD = ("--config", "tests.integrations.rq.carried")


def outcomes(run) -> list[str]:
    """Return the outcomes of a run's attempts."""
    return [attempt.outcome for attempt in run.attempts()]


@pytest.mark.usefixtures("handing_over")
@pytest.mark.parametrize("options", [(), PRELOAD], ids=["imported-per-job", "imported-once"])
def test_carried_runs_leave_no_job_in_redis(tasks, start_worker, counter, queue, options):
    start_worker(*options, app=None if options else APP)
    runs = [tasks.pay.enqueue(number, counter.port) for number in range(5)]
    greeting = tasks.greet.using(delay=0.2).enqueue("ann")

    assert [run.result(timeout=WAIT) for run in runs] == [0, 1, 2, 3, 4]
    assert greeting.result(timeout=WAIT) == "hello ann, from rq"
    assert set(counter.count("ended").values()) == {1}
    wait_until(
        lambda: not list(tasks.broker.scan_iter("rq:job:*")), seconds=WAIT, what="no job is left"
    )
    assert FailedJobRegistry(queue=queue).get_job_count() == 0
    live = [worker for worker in tasks.app.workers.list() if worker.state == "live"]
    assert len(live) == 1, "work-horses unregister"


@pytest.mark.stores("sqlite")
def test_a_duly_worker_runs_only_its_own_tasks(tasks, counter):
    with tasks.app.worker():
        run = tasks.pay.enqueue(1, counter.port)
        assert tasks.ours.enqueue(7).result(timeout=WAIT) == 7
        wait_until(
            lambda: run.refresh().record.lane == "handed",
            seconds=WAIT,
            what="the run is handed over",
        )

    assert run.refresh().state == "queued"
    assert counter.effects("began") == []


@pytest.mark.usefixtures("handing_over")
@pytest.mark.stores("sqlite")
def test_a_simple_worker_leaves_the_application_of_its_process_usable(tasks, queue, counter):
    runs = [tasks.pay.enqueue(number, counter.port) for number in range(2)]

    rq.SimpleWorker([queue]).work(max_jobs=2)

    assert [run.result(timeout=WAIT) for run in runs] == [0, 1]
    assert tasks.ours.enqueue(7).result(timeout=WAIT) == 7, "its own worker has its store"


@pytest.mark.usefixtures("handing_over")
def test_duly_retries_and_fails_carried_runs(tasks, start_worker, counter, queue):
    start_worker()
    flaky, broken = tasks.flaky.enqueue(counter.port), tasks.broken.enqueue()

    assert flaky.result(timeout=WAIT) == 3
    with pytest.raises(RunFailed, match="no such order"):
        broken.result(timeout=WAIT)
    assert outcomes(flaky.refresh()) == ["raised", "raised", "returned"]
    assert [run.id for run in tasks.app.dead.list()] == [broken.id]
    assert FailedJobRegistry(queue=queue).get_job_count() == 0, "RQ counts the job as finished"


@pytest.mark.usefixtures("handing_over")
@pytest.mark.stores("sqlite")
def test_a_lost_message_is_sent_again_and_a_doubled_message_claims_nothing(
    tasks, start_worker, counter, queue
):
    run = tasks.pay.enqueue(1, counter.port)
    wait_until(lambda: queue.count == 1, seconds=WAIT, what="it is sent")
    queue.delete(delete_jobs=True)
    assert queue.count == 0, "the message is lost"
    # The message is stale at once, and is sent again before a worker has fetched it: it is doubled.
    for count in (1, 2):
        tasks.app.store.do(PostponeHandOver((run.id,), 0))
        tasks.app.store.wake()
        wait_until(lambda count=count: queue.count == count, seconds=WAIT, what="it is sent again")
    start_worker()

    assert run.result(timeout=WAIT) == 1
    wait_until(
        lambda: not list(tasks.broker.scan_iter("rq:job:*")), seconds=WAIT, what="both are done"
    )
    assert counter.count("began") == {"1": 1}


@pytest.mark.usefixtures("handing_over")
def test_a_killed_worker_loses_nothing(tasks, start_worker, counter, tmp_path):
    gate = tmp_path / "gate"
    first = start_worker()
    runs = [tasks.linger.enqueue(number, counter.port, str(gate)) for number in range(2)]
    wait_until(lambda: counter.effects("began"), seconds=WAIT, what="one begins")
    first.kill()
    gate.touch()
    start_worker()

    assert all(run.result(timeout=WAIT) for run in runs)


@pytest.mark.usefixtures("handing_over")
def test_a_frozen_work_horse_cannot_finish_a_run_that_another_has_taken_over(
    tasks, start_worker, counter, tmp_path, store_url
):
    gate = tmp_path / "gate"
    first = start_worker()
    run = tasks.linger.enqueue(1, counter.port, str(gate))
    wait_until(lambda: counter.effects("began"), seconds=WAIT, what="the task begins")
    ((_, frozen),) = counter.effects("began")
    first.freeze(store_url)
    start_worker()
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


@pytest.mark.usefixtures("handing_over")
def test_a_run_that_must_not_begin_twice_is_interrupted_when_its_worker_is_killed(
    tasks, start_worker, counter, tmp_path
):
    worker = start_worker()
    run = tasks.once.enqueue(1, counter.port, str(tmp_path / "gate"))
    wait_until(lambda: counter.effects("began"), seconds=WAIT, what="the task begins")
    worker.kill()
    start_worker()

    wait_until(lambda: run.refresh().is_final, seconds=WAIT, what="the run is final")
    assert (run.state, run.cause) == ("interrupted", "crashed")
    assert len(counter.effects("began")) == 1


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("configured", [None, APP])
def test_a_message_cannot_choose_the_module_that_is_imported(
    tasks, configured, tmp_path, monkeypatch
):
    (tmp_path / "chosen_by_a_message.py").write_text("from tests.integrations.rq.carried import *")
    monkeypatch.syspath_prepend(tmp_path)
    if configured is not None:
        monkeypatch.setenv("DULY_APP", configured)
    before = set(sys.modules)

    for reference in (
        "chosen_by_a_message:app",
        "tests.integrations.rq.carried:broker",
        "os:system",
        "../shop.py",
    ):
        with pytest.raises(AppNotFound):
            carry(reference, "run", 0, tasks.pay.name)

    assert "chosen_by_a_message" not in set(sys.modules) - before


@pytest.mark.stores("sqlite")
def test_only_tasks_that_the_application_carries_run(tasks):
    for name in ("no_such_task", tasks.ours.name, "os:system"):
        with pytest.raises(TaskNotRegistered):
            carry(APP, "run", 0, name)


@pytest.mark.stores("sqlite")
def test_a_worker_without_an_application_runs_nothing_and_names_the_missing_variable(
    tasks, start_worker, queue
):
    start_worker(app=None)

    tasks.carrier.send([CarrierMessage("run", 0, tasks.pay.name, "default", 0)])

    registry = FailedJobRegistry(queue=queue)
    wait_until(lambda: registry.get_job_count() == 1, seconds=WAIT, what="it fails")
    (job_id,) = registry.get_job_ids()
    assert f"DULY_APP={APP}" in queue.fetch_job(job_id).latest_result().exc_string


@pytest.mark.stores("sqlite")
def test_a_message_that_cannot_be_run_is_a_failed_job_of_rq(tasks, start_worker, queue, counter):
    start_worker()

    tasks.carrier.send([CarrierMessage("run", 0, "no_such_task", "default", 0)])

    registry = FailedJobRegistry(queue=queue)
    wait_until(lambda: registry.get_job_count() == 1, seconds=WAIT, what="it fails")
    (job_id,) = registry.get_job_ids()
    assert "no_such_task" in queue.fetch_job(job_id).latest_result().exc_string


@pytest.mark.stores("sqlite")
def test_a_carrier_needs_an_importable_name_of_the_application(queue):
    with pytest.raises(AppNotFound, match="module:attribute"):
        RQCarrier(queue, app="not a module")

"""`duly why`: the reason why a run is not running, as the command prints it."""

import threading
from collections.abc import Callable, Iterator

import pytest

from duly import Duly
from tests.cli.conftest import answer

HURRY = 30


@pytest.fixture
def held(app: Duly, url: str) -> Iterator[Callable[..., list[str]]]:
    """Enqueues runs of a task with a full limit: only the first run can start."""
    begun, end = threading.Event(), threading.Event()
    # The worker has its own store, because commands close the application's.
    other = Duly(url)
    workers = []

    def enqueue(queue_limit: int | None, **options: object) -> list[str]:
        @other.task(name="stay", **options)
        def stay(tenant: str) -> None:
            begun.set()
            end.wait(HURRY)

        if queue_limit is not None:
            other.queues.limit("default", queue_limit)
        workers.append(other.worker())
        workers[0].start()
        first = stay.enqueue("ann")
        assert begun.wait(HURRY)
        return [first.id, stay.enqueue("ann").id]

    yield enqueue
    end.set()
    for worker in workers:
        worker.stop()
    other.close()


def test_why_prints_the_reason_in_one_sentence(cli, run_of):
    run = run_of("add", 1, delay=3600)

    said = cli("why", run.id)
    found = answer(cli("why", run.id, "--json"))

    assert said.stdout.startswith(f"Run {run.id} (orders:add) is queued: the run is due at ")
    assert (found["id"], found["cause"], found["state"]) == (run.id, "later", "queued")
    assert found["sentence"] in said.stdout
    assert cli("why", run.id, "-q").stdout == "later\n"


def test_why_prints_the_outcome_of_a_run_that_has_ended(cli, run_of, drain):
    run = run_of("add", 1)
    drain()

    said = cli("why", run.id).stdout

    assert said.startswith(f"Run {run.id} (orders:add): the run has ended: succeeded, ")


def test_why_prints_the_error_of_a_run_that_failed_without_its_secrets(cli, run_of, drain):
    run = run_of("log_in", "stranger", "hunter2")
    drain()

    said = cli("why", run.id).stdout

    assert said.endswith("; its last error is PermissionError: stranger may not use ***.\n")


def test_why_of_an_unknown_run_is_not_found(app, cli):
    assert cli("why", "00000000-0000-7000-8000-00000000dead").exit_code == 3


def test_why_names_a_full_limit_of_a_task_and_its_holders_without_the_application(
    cli, held, monkeypatch
):
    monkeypatch.delenv("DULY_APP")
    first, second = held(None, limit=1, limit_key=str)

    found = answer(cli("why", second, "--json"))

    assert found["cause"] == "limit"
    assert f"task 'stay' has a limit for key '***', and run {first} (worker " in found["sentence"]
    assert "--app module:attribute" in found["sentence"]
    assert cli("why", second, "-q").stdout == "limit\n"


def test_why_names_a_full_limit_of_a_queue_and_its_holders(cli, held):
    first, second = held(1)

    said = cli("why", second).stdout

    assert f"the limit of queue 'default' is full: 1 of 1 are running: run {first} (" in said


def test_why_names_a_paused_queue_and_a_missing_worker(app, cli, run_of):
    run = run_of("send", "x")

    alone = answer(cli("why", run.id, "--json"))
    cli("queues", "pause", "mail")
    paused = answer(cli("why", run.id, "--json"))

    assert (alone["cause"], paused["cause"]) == ("no_worker", "paused")
    assert app.store.shown_url in alone["sentence"]
    assert "duly queues resume mail" in paused["sentence"]

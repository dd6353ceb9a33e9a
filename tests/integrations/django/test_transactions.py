"""`transaction=True`: what a body writes by Django and its completion are one commit."""

import threading
from contextlib import suppress

import psycopg
import pytest
from django.db import IntegrityError, connection, connections, transaction

import duly
from duly import BadOption, faultpoints
from duly.errors import TransactionTooLong
from duly.events import EngineFailed, ResultDropped
from duly.integrations.django import duly_options, exactly_once
from duly.integrations.django.backend import DulyBackend
from duly.integrations.django.databases import url_of
from duly.integrations.django.testing import drain as drain_here
from tests.integrations.django import other, tasks
from tests.integrations.django.api import task
from tests.integrations.django.test_exactly_once import fired
from tests.worker.waits import take_over, wait_until_empty

SOON = 20.0


@pytest.fixture(autouse=True)
def _table(project):
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE said (word varchar(20) UNIQUE)")


def said() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT word FROM said ORDER BY word")
        return [word for (word,) in cursor.fetchall()]


def drained(backend, result):
    backend.app.worker().drain(timeout=SOON)
    result.refresh()
    return result


def runs_of(backend, chosen) -> int:
    return len(backend.app.runs.list(task=chosen.module_path))


def test_writes_and_enqueued_tasks_are_there_when_the_run_has_succeeded(backend):
    result = drained(backend, tasks.say_once.enqueue("hello"))
    assert result.return_value == "hello"
    assert said() == ["hello"]
    assert runs_of(backend, tasks.add) == 1


def test_a_body_that_raises_leaves_nothing_behind(backend):
    result = drained(backend, tasks.say_once.enqueue("hello", failures=1))
    assert result.attempts == 2
    assert said() == ["hello"]
    assert runs_of(backend, tasks.add) == 1


written, may_end = threading.Event(), threading.Event()


@task()
@duly_options(transaction=True)
def say_and_wait(word: str) -> None:
    tasks.say.func(word)
    written.set()
    may_end.wait(SOON)


def test_nothing_of_it_is_seen_before_and_all_of_it_after(backend):
    written.clear()
    may_end.clear()
    result = say_and_wait.enqueue("hello")
    with backend.app.worker():
        assert written.wait(SOON)
        before = said()
        may_end.set()
        backend.app.runs.get(result.id).result(timeout=SOON)
    assert before == []
    assert said() == ["hello"]


@pytest.mark.stores("postgres")  # On SQLite nobody can take it over: the file is locked.
def test_a_body_whose_run_was_taken_over_writes_nothing(backend):
    lost = []
    backend.app.bus.subscribe(
        lambda event: lost.append(event) if isinstance(event, ResultDropped) else None
    )
    written.clear()
    may_end.clear()
    result = say_and_wait.enqueue("hello")
    with backend.app.worker(lease=60, beat=20) as worker:
        assert written.wait(SOON)
        take_over(backend.app, worker, result.id)
        may_end.set()
        wait_until_empty(worker)
    assert said() == []
    assert lost


@task()
@duly_options(transaction=True)
def say_twice(word: str) -> None:
    tasks.say.func(word)
    with suppress(IntegrityError), transaction.mark_for_rollback_on_error():  # As models save.
        tasks.say.func(word)


@task()
@duly_options(transaction=True)
def say_and_take_back(word: str) -> None:
    tasks.say.func(word)
    transaction.set_rollback(True)


@pytest.mark.parametrize("chosen", [say_twice, say_and_take_back])
def test_a_transaction_that_is_broken_is_a_failure_and_never_a_silent_loss(backend, chosen):
    result = drained(backend, chosen.enqueue("hello"))
    assert result.status == "FAILED"
    assert said() == []


@task()
@duly_options(transaction=True, transaction_limit=0.2)
def say_slowly(word: str) -> None:
    tasks.say.func(word)
    threading.Event().wait(1.0)
    tasks.say.func("again")


def test_one_that_is_open_for_too_long_is_rolled_back_meanwhile(backend):
    slow = say_slowly.enqueue("hello")
    quick = tasks.say.enqueue("quick")
    drained(backend, slow)
    quick.refresh()
    assert TransactionTooLong.__name__ in slow.errors[0].exception_class_path
    assert quick.status == "SUCCESSFUL"
    assert said() == ["quick"]


@task()
@duly_options(transaction=True)
def say_and_call_back(word: str) -> None:
    tasks.say.func(word)
    transaction.on_commit(lambda: 1 / 0)


def test_an_error_behind_the_commit_is_told_and_changes_nothing(backend):
    told = []
    backend.app.bus.subscribe(
        lambda event: told.append(event) if isinstance(event, EngineFailed) else None
    )
    result = drained(backend, say_and_call_back.enqueue("hello"))
    assert result.status == "SUCCESSFUL"
    assert said() == ["hello"]
    assert ["ZeroDivisionError" in event.error for event in told] == [True]


@pytest.mark.parametrize("place", ["transaction.before_settle", "transaction.before_commit"])
def test_what_fails_on_the_way_to_the_commit_writes_nothing(backend, place):
    struck = []

    def strike():
        if not struck:
            struck.append(place)
            raise ConnectionError(place)

    faultpoints.arm(place, strike)
    try:
        result = drained(backend, tasks.say_once.enqueue("hello"))
    finally:
        faultpoints.disarm()
    assert struck
    assert result.status == "SUCCESSFUL"
    assert result.attempts == 2
    assert said() == ["hello"]
    assert runs_of(backend, tasks.add) == 1


@task()
def say_in_the_end(word: str) -> None:
    with duly.current().transaction():
        tasks.say.func(word)
        if word == "bad":
            raise tasks.Refused(word)


def test_a_task_without_it_may_end_with_one(backend):
    good, bad = say_in_the_end.enqueue("good"), say_in_the_end.enqueue("bad")
    drained(backend, good)
    bad.refresh()
    assert (good.status, bad.status) == ("SUCCESSFUL", "FAILED")
    assert said() == ["good"]


@task()
@duly_options(transaction=True)
def say_and_lose_the_server(word: str, *, goes_on: bool) -> int:
    tasks.say.func(word)
    if duly.current().fence == 1:
        with psycopg.connect(url_of("default"), autocommit=True) as administrator:
            pid = connections["default"].connection.info.backend_pid
            administrator.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        if goes_on:
            tasks.say.func("lost")
    return duly.current().attempt


@pytest.mark.stores("postgres")
@pytest.mark.parametrize("goes_on", [False, True])
def test_one_whose_server_is_lost_runs_again_at_no_cost(backend, goes_on):
    result = drained(backend, say_and_lose_the_server.enqueue("hello", goes_on=goes_on))
    assert result.return_value == 1
    assert said() == ["hello"]


def test_the_next_body_on_the_connection_is_free_of_it(backend):
    drained(backend, say_slowly.enqueue("hello"))
    result = drained(backend, tasks.say.enqueue("next"))
    assert result.status == "SUCCESSFUL"
    assert said() == ["next"]


def test_in_a_test_it_is_a_part_of_the_tests_own_transaction(backend):
    tasks.say_once.enqueue("hello", failures=0)
    tasks.say_once.enqueue("again", failures=9)
    with transaction.atomic():
        drain_here()
        assert said() == ["hello"]
        transaction.set_rollback(True)
    assert said() == []


@task(backend="other")
@exactly_once(transaction=True)
def bill(customer: str) -> str:
    tasks.say.func(customer)
    return f"billed {customer}"


def test_an_execution_of_another_backend_writes_with_its_completion(scheduler):
    delivery = fired(scheduler, bill, "ada")
    assert other.deliver(delivery) == "billed ada"
    assert other.deliver(delivery) is None
    assert said() == ["ada"]
    (run,) = scheduler.runs.list()
    assert run.state == "succeeded"


@pytest.mark.stores("sqlite-wal")
def test_what_could_not_hold_is_refused_at_import(backend):
    async def later() -> None: ...

    with pytest.raises(BadOption, match="plain def"):
        exactly_once(transaction=True)(later)
    apart = DulyBackend("apart", {"QUEUES": [], "OPTIONS": {"url": "postgresql://elsewhere"}})
    with pytest.raises(BadOption, match="uses a url"):
        apart.validate_task(tasks.say_once)

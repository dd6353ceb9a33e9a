"""`transaction=True`: a task's writes through Django and its completion are one commit."""

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


def test_writes_and_enqueued_tasks_are_committed_when_the_run_has_succeeded(backend):
    result = drained(backend, tasks.say_once.enqueue("hello"))
    assert result.return_value == "hello"
    assert said() == ["hello"]
    assert runs_of(backend, tasks.add) == 1


def test_a_task_that_raises_writes_nothing(backend):
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


def test_the_writes_of_a_task_become_visible_together_at_its_end(backend):
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


@pytest.mark.stores("postgres")  # On SQLite no other worker can take it over: the file is locked.
def test_a_task_whose_run_was_taken_over_writes_nothing(backend):
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
    with suppress(IntegrityError), transaction.mark_for_rollback_on_error():  # As models do.
        tasks.say.func(word)


@task()
@duly_options(transaction=True)
def say_and_take_back(word: str) -> None:
    tasks.say.func(word)
    transaction.set_rollback(True)


@pytest.mark.parametrize("chosen", [say_twice, say_and_take_back])
def test_a_broken_transaction_is_a_failure_and_never_a_silent_loss(backend, chosen):
    result = drained(backend, chosen.enqueue("hello"))
    assert result.status == "FAILED"
    assert said() == []


@task()
@duly_options(transaction=True, transaction_limit=0.2)
def say_slowly(word: str) -> None:
    tasks.say.func(word)
    threading.Event().wait(1.0)
    tasks.say.func("again")


def test_a_transaction_that_is_open_for_too_long_is_rolled_back_while_its_task_runs(backend):
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


def test_an_error_after_the_commit_is_reported_and_the_run_succeeds(backend):
    told = []
    backend.app.bus.subscribe(
        lambda event: told.append(event) if isinstance(event, EngineFailed) else None
    )
    result = drained(backend, say_and_call_back.enqueue("hello"))
    assert result.status == "SUCCESSFUL"
    assert said() == ["hello"]
    assert ["ZeroDivisionError" in event.error for event in told] == [True]


@pytest.mark.parametrize("place", ["transaction.before_settle", "transaction.before_commit"])
def test_a_completion_that_fails_before_the_commit_is_repeated_and_writes_once(backend, place):
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


def test_a_task_without_transaction_true_may_end_in_a_transaction_of_its_own(backend):
    good, bad = say_in_the_end.enqueue("good"), say_in_the_end.enqueue("bad")
    drained(backend, good)
    bad.refresh()
    assert (good.status, bad.status) == ("SUCCESSFUL", "FAILED")
    assert said() == ["good"]


@task()
@duly_options(transaction=True)
def say_and_lose_the_server(word: str, *, writes_again: bool) -> int:
    tasks.say.func(word)
    if duly.current().fence == 1:
        with psycopg.connect(url_of("default"), autocommit=True) as administrator:
            pid = connections["default"].connection.info.backend_pid
            administrator.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        if writes_again:
            tasks.say.func("lost")
    return duly.current().attempt


@pytest.mark.stores("postgres")
@pytest.mark.parametrize("writes_again", [False, True])
def test_a_run_whose_database_server_is_lost_runs_again_without_using_a_retry(
    backend, writes_again
):
    result = drained(backend, say_and_lose_the_server.enqueue("hello", writes_again=writes_again))
    assert result.return_value == 1
    assert said() == ["hello"]


def test_a_transaction_that_was_too_long_does_not_affect_the_next_task(backend):
    drained(backend, say_slowly.enqueue("hello"))
    result = drained(backend, tasks.say.enqueue("next"))
    assert result.status == "SUCCESSFUL"
    assert said() == ["next"]


def test_a_task_transaction_in_a_test_is_a_part_of_the_tests_transaction(backend):
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


def test_an_execution_on_another_backend_commits_its_writes_with_its_completion(scheduler):
    delivery = fired(scheduler, bill, "ada")
    assert other.deliver(delivery) == "billed ada"
    assert other.deliver(delivery) is None
    assert said() == ["ada"]
    (run,) = scheduler.runs.list()
    assert run.state == "succeeded"


@pytest.mark.stores("sqlite-wal")
def test_a_transaction_that_cannot_be_guaranteed_is_refused_at_import(backend):
    async def later() -> None: ...

    with pytest.raises(BadOption, match="plain def"):
        exactly_once(transaction=True)(later)
    apart = DulyBackend("apart", {"QUEUES": [], "OPTIONS": {"url": "postgresql://elsewhere"}})
    with pytest.raises(BadOption, match="uses a url"):
        apart.validate_task(tasks.say_once)


@task()
@duly_options(transaction=True)
def say_and_end(word: str, ending: str, *, composed: bool = False) -> None:
    tasks.say.func(word)
    with suppress(Exception):
        connection.cursor().execute(psycopg.sql.SQL(ending) if composed else ending)
    tasks.say.func("after")


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize(
    "ending", ["COMMIT", "ROLLBACK", "INSERT OR ROLLBACK INTO said VALUES ('hello')"]
)
def test_a_task_does_not_succeed_after_a_statement_that_ends_its_transaction(backend, ending):
    result = drained(backend, say_and_end.enqueue("hello", ending))
    assert result.status == "FAILED"
    assert said() == (["hello"] if ending == "COMMIT" else [])


@pytest.mark.stores("postgres")
@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_a_task_does_not_succeed_after_a_composed_statement_that_ends_its_transaction(
    backend, ending
):
    result = drained(backend, say_and_end.enqueue("hello", ending, composed=True))
    assert result.status == "FAILED"
    assert said() == (["hello"] if ending == "COMMIT" else [])


@task()
@duly_options(transaction=True)
def say_and_execute(word: str, statement: str) -> None:
    tasks.say.func(word)
    connection.cursor().execute(statement)


@pytest.mark.stores("postgres")
@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "COMMIT; BEGIN"])
def test_a_statement_that_would_end_the_transaction_is_refused(backend, ending):
    result = drained(backend, say_and_execute.enqueue("hello", ending))
    assert BadOption.__name__ in result.errors[0].exception_class_path
    assert said() == []


@task()
@duly_options(transaction=True)
def say_in_savepoints(word: str) -> None:
    with transaction.atomic():
        tasks.say.func(word)
    with suppress(IntegrityError), transaction.atomic():
        tasks.say.func(word)
    tasks.say.func("after")


def test_a_task_may_undo_some_of_its_writes_with_savepoints(backend):
    result = drained(backend, say_in_savepoints.enqueue("hello"))
    assert result.status == "SUCCESSFUL"
    assert said() == ["after", "hello"]

"""`DulyBackend`: what Django expects of a backend, in the transactions of the caller."""

import logging
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from duly import BadArguments, KeyConflict
from duly.errors import RunFailed
from duly.integrations.django.backend import DulyBackend
from tests.integrations.django import tasks
from tests.integrations.django.api import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from tests.servers.processes import wait_until
from tests.worker.waits import never_poll, wait_until_it_only_listens

SOON = 20.0


def drain(backend) -> None:
    backend.app.worker().drain(timeout=SOON)


def test_a_task_runs_and_its_result_is_had(backend):
    result = tasks.add.enqueue(41, other=1)
    assert result.status == TaskResultStatus.READY
    assert result.enqueued_at is not None
    drain(backend)
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.return_value == 42
    assert result.attempts == 1
    assert result.started_at <= result.last_attempted_at <= result.finished_at
    again = tasks.add.get_result(result.id)
    assert (again.args, again.kwargs) == ([41], {"other": 1})


def test_an_async_task_runs_in_its_queue_with_its_priority(backend):
    result = async_to_sync(tasks.add_on_the_loop.aenqueue)(41)
    record = backend.app.runs.get(result.id).record
    assert (record.queue, record.priority) == ("mail", 7)
    drain(backend)
    assert async_to_sync(tasks.add_on_the_loop.aget_result)(result.id).return_value == 42


def test_what_was_rolled_back_never_existed(backend):
    with transaction.atomic():
        tasks.add.enqueue(1)
        transaction.set_rollback(True)
    with transaction.atomic():
        kept = tasks.add.enqueue(2)
        assert kept.task.get_result(kept.id).status == TaskResultStatus.READY
    assert [run.id for run in backend.app.runs.list()] == [kept.id]


@pytest.mark.usefixtures(never_poll.__name__)
def test_a_worker_hears_of_a_task_when_its_transaction_has_committed(backend):
    with backend.app.worker() as worker:
        wait_until_it_only_listens(worker)
        with transaction.atomic():
            result = tasks.add.enqueue(1)

        assert backend.app.runs.get(result.id).result(timeout=SOON) == 2


def test_outside_of_a_transaction_a_task_is_accepted_at_once(backend):
    result = tasks.add.enqueue(1)
    assert [run.id for run in backend.app.runs.list()] == [result.id]


def test_an_error_is_told_as_django_tells_it(backend):
    result = tasks.divide.enqueue(1, 0)
    drain(backend)
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    (error,) = result.errors
    assert error.exception_class is ZeroDivisionError
    assert "division by zero" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


@pytest.mark.parametrize("is_inside", [False, True])
def test_the_time_of_a_call_is_the_same_whoever_asks(backend, is_inside):
    with transaction.atomic() if is_inside else nullcontext():
        result = tasks.add.enqueue(41)
        before = tasks.add.get_result(result.id)
    drain(backend)
    after = tasks.add.get_result(result.id)

    assert result.enqueued_at == before.enqueued_at == after.enqueued_at
    assert abs(timezone.now() - result.enqueued_at) < timedelta(seconds=SOON)


@pytest.mark.parametrize("task", [tasks.divide, tasks.divide_on_the_loop, tasks.divide_secretly])
def test_a_failure_is_logged_with_its_traceback(backend, caplog, task):
    backend.tell_ends()
    result = task.enqueue(1, 0)
    drain(backend)

    def lines() -> list[logging.LogRecord]:
        named = (line for line in caplog.records if result.id in line.message)
        return [line for line in named if "state=FAILED" in line.message]

    wait_until(lambda: bool(lines()), seconds=SOON, what="the end is logged")
    (line,) = lines()
    shown = logging.Formatter().format(line)
    assert line.levelname == "ERROR"
    assert "Traceback (most recent call last)" in shown
    assert "return number / by" in shown
    assert "ZeroDivisionError: division by zero" in shown
    # Django's own logger has logged it, so duly's does not do so again.
    errors = [line for line in caplog.records if line.levelno >= logging.ERROR]
    assert errors == [line]
    # An exception may show arguments; of a task with secret ones the stored text is logged.
    is_stored = line.exc_info[0] is RunFailed
    assert is_stored == (task is tasks.divide_secretly)


def test_a_failure_is_logged_without_an_argument_that_is_named_like_a_secret(backend, caplog):
    backend.tell_ends()
    result = tasks.refuse.enqueue("canary-7f3a91")
    drain(backend)

    def shown() -> list[str]:
        named = (line for line in caplog.records if result.id in line.message)
        return [logging.Formatter().format(line) for line in named]

    wait_until(
        lambda: any("state=FAILED" in line for line in shown()),
        seconds=SOON,
        what="the end is logged",
    )
    assert any("harmless for" in line for line in shown())
    assert not any("canary-7f3a91" in line for line in shown())


def test_an_end_without_an_error_is_logged_without_one(backend, caplog):
    caplog.set_level(logging.INFO)
    backend.tell_ends()
    result = tasks.add.enqueue(1)
    drain(backend)

    def lines() -> list[logging.LogRecord]:
        return [line for line in caplog.records if f"{result.id} " in line.message]

    wait_until(
        lambda: any("state=SUCCESSFUL" in line.message for line in lines()),
        seconds=SOON,
        what="the end is logged",
    )
    assert not any(line.exc_info for line in lines())


def test_a_result_that_json_lacks_is_a_failure(backend):
    result = tasks.give_what_json_lacks.enqueue()
    drain(backend)
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is TypeError


def test_arguments_that_json_lacks_are_refused_at_the_call(backend):
    with pytest.raises(TypeError):
        tasks.add.enqueue(object())
    with pytest.raises(TypeError, match="required"):
        tasks.add.enqueue(nosuch=1)
    assert backend.app.runs.list() == []


def test_a_task_that_takes_context_is_given_it(backend):
    result = tasks.tell_attempt.enqueue("word")
    drain(backend)
    result.refresh()
    assert result.return_value == ["word", 1, result.id]


def test_options_of_duly_hold(backend, tmp_path):
    result = tasks.retried.enqueue(str(tmp_path / "tries"))
    with backend.app.worker():
        assert backend.app.runs.get(result.id).result(timeout=SOON) == "done"
    result.refresh()
    assert result.attempts == 3
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]


def test_a_key_makes_one_run_of_two_calls(backend):
    first, second = tasks.keyed.enqueue(1), tasks.keyed.enqueue(1)
    other = tasks.keyed.enqueue(2)
    assert first.id == second.id != other.id
    with pytest.raises(KeyConflict):
        tasks.keyed.using(key="number-1").enqueue(3)


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize(("args", "named"), [((), {}), ((1, 2, 3, 4), {}), ((1,), {"nosuch": 2})])
def test_a_call_that_does_not_fit_is_refused_before_its_key_is_made(backend, args, named):
    with pytest.raises(BadArguments):
        tasks.keyed.enqueue(*args, **named)


def test_a_task_waits_until_run_after(backend):
    later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
    drain(backend)
    later.refresh()
    assert later.status == TaskResultStatus.READY
    with pytest.raises(InvalidTask):
        tasks.add.using(run_after=timezone.make_naive(timezone.now()))


@pytest.mark.parametrize("wrong", ["nosuch", "", "a" * 500, "\x00", "0" * 32])
def test_a_result_that_does_not_exist_is_told_so(backend, wrong):
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(wrong)
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(backend.aget_result)(wrong)


@pytest.mark.stores("sqlite-wal")
def test_what_a_call_may_not_ask_for_is_refused(backend):
    for priority in (-101, 101, 0.5):
        with pytest.raises(InvalidTask, match="priority"):
            tasks.add.using(priority=priority)
    for priority in (-100, 100):
        assert backend.app.runs.get(tasks.add.using(priority=priority).enqueue(1).id)
    strict = DulyBackend("strict", {"QUEUES": ["default"]})
    with pytest.raises(InvalidTask, match="mail"):
        strict.validate_task(tasks.add.using(queue_name="mail"))


def test_a_result_of_another_task_is_a_mismatch(backend):
    result = tasks.add.enqueue(1)
    with pytest.raises(TaskResultMismatch):
        tasks.divide.get_result(result.id)


@contextmanager
def told(signal):
    said = []

    def receive(sender, task_result, **_options):
        said.append((sender, task_result.id, task_result.status))

    signal.connect(receive)
    try:
        yield said
    finally:
        signal.disconnect(receive)


def test_django_is_told_of_beginning_and_end(backend):
    backend.tell_ends()
    with (
        told(task_enqueued) as enqueued,
        told(task_started) as started,
        told(task_finished) as finished,
    ):
        good, bad = tasks.add.enqueue(1), tasks.divide.enqueue(1, 0)
        drain(backend)
        wait_until(lambda: len(finished) == 2, seconds=SOON, what="Django is told")
    assert [one[1:] for one in enqueued] == [(good.id, "READY"), (bad.id, "READY")]
    assert {one[1:] for one in started} == {(good.id, "RUNNING"), (bad.id, "RUNNING")}
    assert {one[1:] for one in finished} == {(good.id, "SUCCESSFUL"), (bad.id, "FAILED")}


def test_a_task_uses_the_database_of_django(backend):
    result = tasks.ask_the_database.enqueue()
    drain(backend)
    result.refresh()
    assert result.return_value == 42


def test_tasks_can_be_defined_before_the_applications_are_ready():
    # In an interpreter of its own, since Django is set up once in each.
    program = """
from django.conf import settings
settings.configure(TASKS={
    "default": {"BACKEND": "duly.integrations.django.DulyBackend"},
    "other": {"BACKEND": "tests.integrations.django.other.OtherBackend"},
})
from duly.integrations.django import exactly_once, scheduled_task
from tests.integrations.django.api import task

@scheduled_task(cron="0 2 * * *")
@task()
@exactly_once
def nightly(): ...

@scheduled_task(cron="0 2 * * *", name="elsewhere")
@task(backend="other")
@exactly_once(transaction=True)
def elsewhere(): ...
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr

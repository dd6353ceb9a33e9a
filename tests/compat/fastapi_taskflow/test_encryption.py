"""With a key, no stored data of a call can be read without that key."""

import sqlite3
import sys

import pytest
from cryptography.fernet import Fernet

from duly import BadOption, Duly, RunFailed, step
from duly.compat.fastapi_taskflow import TaskManager
from duly.core.display import display
from duly.errors import AttemptTimedOut, PayloadError
from tests.compat.fastapi_taskflow.conftest import adding, serving
from tests.servers.processes import wait_until

SOON = 20.0
KEY = Fernet.generate_key()
SECRET = "hunter2"  # noqa: S105 - must not be found anywhere


def define(manager: TaskManager, *, fails: bool = False):
    @manager.task(name="login", requeue_on_interrupt=True, persist=True)
    def login(password: str) -> str:
        if fails:
            raise ValueError("wrong")
        return password[::-1]

    return login


def stored(manager: TaskManager, task_id: str) -> str:
    record = manager.duly.runs.get(task_id).record
    return f"{record.arguments} {record.result} {record.key}"


def test_arguments_and_results_are_stored_as_tokens_and_come_back(manager_of):
    manager = manager_of(encrypt_args_key=KEY)
    login = define(manager)
    with serving(manager):
        task_id = adding(manager).add_task(login, SECRET, idempotency_key="k")
        assert manager.duly.runs.get(task_id).result(timeout=SOON) == SECRET[::-1]
        assert adding(manager).add_task(login, SECRET, idempotency_key="k") == task_id
    found = stored(manager, task_id)
    assert SECRET not in found
    assert SECRET[::-1] not in found
    assert display(manager.duly.runs.get(task_id).record.arguments) == "(encrypted)"
    assert manager.store.get(task_id, arguments=True).arguments == "(encrypted)"


def test_a_retry_has_the_same_arguments_or_others(manager_of):
    """The stored arguments stay encrypted, and a retry can replace them."""
    broken, mended = (manager_of(encrypt_args_key=KEY) for _ in range(2))
    login = define(broken, fails=True)
    with serving(broken):
        run = broken.duly.runs.get(adding(broken).add_task(login, SECRET))
        with pytest.raises(RunFailed):
            run.result(timeout=SOON)
    define(mended)
    with serving(mended):
        run = mended.duly.runs.get(run.id).retry()
        assert run.result(timeout=SOON) == SECRET[::-1]
        run = run.retry(arguments=(("other",), {}))
        assert "other" not in run.record.arguments
        assert run.result(timeout=SOON) == "rehto"
    assert [attempt.generation for attempt in run.attempts()] == [1, 2, 3]


def test_a_task_fails_under_another_key_and_runs_once_its_key_is_back(manager_of):
    right, wrong, none = (
        manager_of(encrypt_args_key=key) for key in (KEY.decode(), Fernet.generate_key(), None)
    )
    login = define(right)
    with serving(right):
        right.duly.queues.pause("default")
        task_id = adding(right).add_task(login, SECRET)
        right.duly.queues.resume("default")
        right.duly.runs.get(task_id).result(timeout=SOON)
    for manager in (wrong, none):
        define(manager)
        with serving(manager):
            run = manager.duly.runs.retry(task_id)
            with pytest.raises(RunFailed):
                run.result(timeout=SOON)
            assert run.refresh().cause == "undecodable"
    assert "another key" in wrong.duly.runs.get(task_id).attempts()[1].error
    with serving(right):
        assert right.duly.runs.retry(task_id).result(timeout=SOON) == SECRET[::-1]


def test_a_task_that_was_stored_before_encryption_still_runs(manager_of):
    plain, sealed = manager_of(), manager_of(encrypt_args_key=KEY)
    login = define(plain)
    with serving(plain):
        plain.duly.queues.pause("default")
        task_id = adding(plain).add_task(login, SECRET)
        plain.duly.queues.resume("default")
        plain.duly.runs.get(task_id).result(timeout=SOON)
    define(sealed)
    with serving(sealed):
        assert sealed.duly.runs.retry(task_id).result(timeout=SOON) == SECRET[::-1]


@pytest.mark.stores("sqlite-wal")
def test_the_file_holds_no_trace_of_a_secret(manager_of, tmp_path):
    """The file does not hold a guessable hash of the secret either."""
    manager = manager_of(encrypt_args_key=KEY)
    login = define(manager)
    with serving(manager):
        run = manager.duly.runs.get(adding(manager).add_task(login, SECRET, idempotency_key="k"))
        run.result(timeout=SOON)
        wait_until(lambda: run.refresh().is_final, seconds=SOON, what="the run ends")
    plain = TaskManager(duly=Duly("sqlite://"))
    task, _ = plain._registrar.get(define(plain))
    manager.duly.close()
    with sqlite3.connect(tmp_path / "duly.db") as connection:
        dump = "\n".join(connection.iterdump())
    connection.close()
    assert SECRET not in dump
    assert SECRET[::-1] not in dump
    assert task.definition.codec.fingerprint((SECRET,), {}) not in dump


@pytest.mark.stores("sqlite-wal")
def test_steps_and_errors_leave_no_trace_of_a_secret(manager_of, tmp_path):
    manager = manager_of(encrypt_args_key=KEY)
    returned = []

    @manager.task(name="login", retries=1, delay=0, persist=True, requeue_on_interrupt=True)
    def login(name: str) -> None:
        returned.append(step("ask", lambda: {"answer": [name, name[::-1]]}))
        raise ValueError(f"{name!r} is refused")

    with serving(manager):
        run = manager.duly.runs.get(adding(manager).add_task(login, SECRET))
        with pytest.raises(RunFailed, match=r"'\*\*\*' is refused"):
            run.result(timeout=SOON)
    manager.duly.close()
    with sqlite3.connect(tmp_path / "duly.db") as connection:
        dump = "\n".join(connection.iterdump())
    connection.close()

    assert returned == [{"answer": [SECRET, SECRET[::-1]]}] * 2, "the second is on record"
    assert "duly_steps" in dump
    assert SECRET not in dump
    assert SECRET[::-1] not in dump


def test_the_result_of_a_step_that_an_operator_resolves_is_encrypted(manager_of):
    manager = manager_of(encrypt_args_key=KEY)

    @manager.task(name="login", persist=True, requeue_on_interrupt=True)
    def login() -> str:
        return step("ask", strike, on_crash="hold")[::-1]

    def strike() -> str:
        raise AttemptTimedOut

    with serving(manager):
        run = manager.duly.runs.get(adding(manager).add_task(login))
        with pytest.raises(RunFailed):
            run.result(timeout=SOON)
        manager.duly.runs.resolve(run.id, done=True, result=SECRET)
        result = run.refresh().result(timeout=SOON)
        (asked,) = run.steps()

    assert result == SECRET[::-1]
    assert SECRET not in asked.result


@pytest.mark.stores("sqlite-wal")
def test_the_version_of_a_schedule_does_not_change_at_the_next_start(manager_of):
    versions = []
    for _ in range(2):
        manager = manager_of(encrypt_args_key=KEY)

        @manager.schedule(every=3600, name="hourly")
        def hourly(times: int = 1) -> None: ...

        with serving(manager):
            versions.append(manager.duly.schedules.get("hourly").version)
    assert versions[0] == versions[1]


@pytest.mark.stores("sqlite-wal")
def test_an_invalid_key_or_a_missing_package_is_an_error(monkeypatch):
    with pytest.raises(BadOption, match="generate_key"):
        TaskManager(encrypt_args_key="too short")
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with pytest.raises(BadOption, match=r"duly\[crypto\]"):
        TaskManager(encrypt_args_key=KEY)


@pytest.mark.parametrize("text", ['{"$encrypted"', '{"$encrypted":1}', '{"$encrypted":NaN}'])
def test_a_token_that_is_damaged_is_hidden_and_refused(manager_of, text):
    manager = manager_of(encrypt_args_key=KEY)
    define(manager)
    codec = manager.duly.registry.get("login").codec

    assert codec.redacted(text) == "***"
    with pytest.raises(PayloadError):
        codec.decode(text)

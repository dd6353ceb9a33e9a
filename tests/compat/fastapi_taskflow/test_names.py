"""Every name that users of fastapi-taskflow import is there, or says what became of it."""

import importlib
import subprocess
import sys
from typing import Annotated

import pytest
from cryptography.fernet import Fernet
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

from duly import BadOption
from duly.compat import fastapi_taskflow
from duly.compat.fastapi_taskflow import (
    FileLogger,
    ManagedBackgroundTasks,
    PostgresBackend,
    SqliteBackend,
    TaskArgumentError,
    TaskManager,
)
from duly.errors import DuplicateTask, PayloadError
from tests.compat.fastapi_taskflow.conftest import adding, serving

KNOWN = """
TaskAdmin TaskAuthBackend TaskManager ManagedBackgroundTasks TaskStatus TaskRecord QueueConfig
ScheduledOnce QueueFullError SnapshotBackend SqliteBackend RedisBackend TaskArgumentError
TaskObserver LogEvent LifecycleEvent LoggerChain FileLogger InMemoryLogger StdoutLogger
task_log TaskContext
get_task_context
"""
METHODS = """
task schedule schedule_once cancel_scheduled list_scheduled get_tasks background_tasks install
init_app startup shutdown queue_stats update_queue_config merged_list enqueue_priority
store registry
logger fernet
"""
FIELDS = """
task_id func_name status args kwargs created_at start_time end_time retries_used error logs
stacktrace idempotency_key tags encrypted_payload source priority executor queue duration to_dict
"""


@pytest.mark.stores("sqlite-wal")
def test_the_names_and_methods_are_there(manager):
    @manager.task(name="one")
    def one() -> None: ...

    with serving(manager):
        found = manager.store.get(adding(manager).add_task(one))
    assert [name for name in KNOWN.split() if not hasattr(fastapi_taskflow, name)] == []
    assert set(KNOWN.split()) <= set(fastapi_taskflow.__all__)
    assert [name for name in METHODS.split() if not hasattr(manager, name)] == []
    assert [name for name in FIELDS.split() if not hasattr(found, name)] == []
    backends = importlib.import_module("duly.compat.fastapi_taskflow.backends")
    assert {"PostgresBackend", "MySQLBackend"} <= set(dir(backends))


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("SnapshotScheduler", "add_task returns"),
        ("TaskConfig", "@task_manager.task"),
        ("TaskExecutionContext", "get_task_context"),
    ],
)
def test_a_name_that_is_not_needed_says_so_to_who_imports_it(name, instead):
    done = subprocess.run(
        [sys.executable, "-c", f"from duly.compat.fastapi_taskflow import {name}"],
        capture_output=True,
        text=True,
        check=False,
    )

    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: there is no {name} in ")
    assert instead in last
    assert not hasattr(fastapi_taskflow, "TaskConfusion")


@pytest.mark.stores("sqlite-wal")
def test_a_priority_is_given_with_the_task(manager):
    with pytest.raises(BadOption, match="priority="):
        manager.enqueue_priority(5, "id", None)


def test_a_record_has_the_arguments(manager):
    @manager.task(name="send")
    def send(address: str, /, subject: str, *rest: int) -> None: ...

    with serving(manager):
        task_id = adding(manager).add_task(send, "a@b.c", "hello")
        more = adding(manager).add_task(send, "a@b.c", "hello", 1)
        with pytest.raises(TaskArgumentError):
            adding(manager).add_task(send, object(), "hello")
    found = manager.store.get(task_id)
    assert (found.args, found.kwargs) == (("a@b.c",), {"subject": "hello"})
    assert found.encrypted_payload is None
    assert "a@b.c" not in repr(found)
    assert [record.args for record in manager.store.list() if record.task_id == more] == [
        ("a@b.c", "hello", 1)
    ]
    assert TaskArgumentError is PayloadError


@pytest.mark.stores("sqlite-wal")
def test_a_record_of_encrypted_arguments_has_their_token(manager_of):
    manager = manager_of(encrypt_args_key=Fernet.generate_key())

    @manager.task(name="send")
    def send(address: str) -> None: ...

    with serving(manager):
        found = manager.store.get(adding(manager).add_task(send, "a@b.c"))
    assert (found.args, found.kwargs) == ((), {})
    assert b"a@b.c" in manager.fernet.decrypt(found.encrypted_payload)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("max_concurrent_tasks", ["3", 0, 2.5, True]),
        ("max_sync_threads", ["3", 0, 2.5, True]),
        ("max_process_workers", ["3", 0, 2.5]),
        ("process_shutdown_timeout", ["x", None, float("nan"), float("inf")]),
        ("retention_days", ["x", 0, float("nan")]),
        ("encrypt_args_key", [5, "", b"x"]),
        ("duly", ["sqlite:///tasks.db"]),
        ("snapshot_interval", ["x", None]),
        ("merged_list_ttl", ["x"]),
        ("registry_ttl", [float("nan")]),
        ("registry_heartbeat", [None]),
    ],
)
def test_a_manager_refuses_at_once_what_cannot_work(option, values):
    for value in values:
        with pytest.raises(BadOption, match=option):
            TaskManager(**{option: value})


def test_backends_and_observers_refuse_at_once_what_cannot_work():
    for url in ("sqlite:///tasks.db", "mysql://host/tasks", "tasks.db", "", None):
        with pytest.raises(BadOption, match="postgresql://"):
            PostgresBackend(url)
    with pytest.raises(BadOption, match="SQLite file"):
        SqliteBackend(None)
    for path in ("", 5):
        with pytest.raises(BadOption, match="SQLite file"):
            TaskManager(snapshot_db=path)
    with pytest.raises(BadOption, match="TaskObserver"):
        TaskManager(loggers=[print])
    with pytest.raises(BadOption, match="max_bytes"):
        FileLogger("tasks.log", max_bytes=-1)
    with pytest.raises(BadOption, match="backup_count"):
        FileLogger("tasks.log", backup_count="5")


def _application(manager: TaskManager, factor: int) -> FastAPI:
    """An application factory, as users of fastapi-taskflow write them."""
    app = FastAPI()
    manager.init_app(app)

    @manager.task()
    def multiply(number: int) -> int:
        return factor * number

    @app.post("/multiply")
    def ask(tasks: Annotated[ManagedBackgroundTasks, Depends(manager.get_tasks)]) -> str:
        return tasks.add_task(multiply, 21)

    return app


def test_a_task_inside_an_application_factory_needs_no_name(manager):
    with TestClient(_application(manager, 2)) as client:
        task_id = client.post("/multiply").json()
        assert manager.duly.runs.get(task_id).result(timeout=20) == 42

    assert manager.store.get(task_id).func_name == "multiply"


@pytest.mark.stores("sqlite-wal")
def test_two_functions_of_one_place_cannot_be_one_task(manager):
    _application(manager, 2)
    _application(manager, 2)

    with pytest.raises(DuplicateTask, match="multiply"):
        _application(manager, 3)
    with pytest.raises(BadOption, match="lambda"):
        manager.task()(lambda: None)

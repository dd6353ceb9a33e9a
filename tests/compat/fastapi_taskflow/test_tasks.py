"""Added tasks run, in the form that users of fastapi-taskflow know."""

import asyncio
import threading
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated
from uuid import UUID

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from fastapi.testclient import TestClient

from duly import BadOption
from duly.compat.fastapi_taskflow import (
    ManagedBackgroundTasks,
    ManagerNotStarted,
    PostgresBackend,
    RedisBackend,
    SqliteBackend,
    TaskManager,
    TaskStatus,
    get_task_context,
    task_log,
)
from duly.errors import DuplicateTask, LifespanNotStarted, PayloadError
from duly.observe.logs import log_notice
from duly.store.ops.upkeep import Prune
from tests.compat.fastapi_taskflow.conftest import adding, serving

SOON = 20.0


def test_a_task_is_durable_when_add_task_returns_and_then_runs(manager):
    """Its result is also stored."""

    @manager.task(name="double", retries=1)
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == 8
    with serving(manager):
        task_id = adding(manager).add_task(double, 21, tags={"tenant": "a"}, priority=5)
        run = manager.duly.runs.get(task_id)
        assert run.result(timeout=SOON) == 42
    found = manager.store.get(task_id)
    assert (found.status, found.func_name) == (TaskStatus.SUCCESS, "double")
    assert (found.tags, found.priority, found.source) == ({"tenant": "a"}, 5, "manual")
    assert found.executor == "thread"


@pytest.mark.stores("sqlite-wal")
def test_a_task_without_a_priority_has_none(manager):
    @manager.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    async def once(priority: int | None) -> int | None:
        later = datetime.now(UTC) + timedelta(hours=1)
        await manager.schedule_once(double, 1, run_at=later, run_key="k", priority=priority)
        (waiting,) = await manager.list_scheduled()
        return waiting.priority

    with serving(manager) as client:
        assert client.portal is not None
        assert client.portal.call(once, None) is None
        assert client.portal.call(once, 5) == 5
        task_id = adding(manager).add_task(double, 21, priority=None)
        assert manager.store.get(task_id).priority is None
    assert manager.store.get(task_id).to_dict()["priority"] is None


def test_every_type_of_background_tasks_parameter_adds_duly_tasks(manager):
    @manager.task(name="one")
    async def one() -> int:
        return 1

    app = FastAPI()
    manager.install(app)

    @app.post("/plain")
    def plain(tasks: BackgroundTasks) -> str:
        return tasks.add_task(one)

    @app.post("/managed")
    async def managed(tasks: ManagedBackgroundTasks) -> str:
        return await tasks.aadd_task(one)

    @app.post("/depends")
    def depends(tasks: Annotated[ManagedBackgroundTasks, Depends(manager.get_tasks)]) -> str:
        return tasks.add_task(one)

    @app.post("/other")
    def other(tasks: Annotated[object, Depends(manager.background_tasks)]) -> str:
        return tasks.add_task(one)

    with TestClient(app) as client:
        ids = [client.post(path).json() for path in ("/plain", "/managed", "/depends", "/other")]
        assert [manager.duly.runs.get(run).result(timeout=SOON) for run in ids] == [1, 1, 1, 1]


@pytest.mark.stores("sqlite-wal")
def test_another_application_keeps_the_background_tasks_of_fastapi(manager):
    manager.install(FastAPI())
    other = FastAPI()
    done = []

    @other.post("/")
    def add(tasks: BackgroundTasks) -> str:
        tasks.add_task(done.append, 1)
        return type(tasks).__name__

    with TestClient(other) as client:
        assert client.post("/").json() == "BackgroundTasks"
    assert done == [1]


def test_an_application_with_its_own_lifespan_runs_the_manager(manager):
    """The worker starts once, however often the manager is installed."""
    said = []

    @asynccontextmanager
    async def lifespan(_app: FastAPI):
        said.append("opens")
        yield
        said.append("closes")

    @manager.task(name="one")
    def one() -> None:
        said.append("runs")

    app = FastAPI(lifespan=lifespan)
    manager.init_app(app)
    manager.init_app(app)
    with TestClient(app):
        manager.duly.runs.get(adding(manager).add_task(one)).result(timeout=SOON)
    assert said == ["opens", "runs", "closes"]
    assert len(manager.duly.workers.list()) == 1


@pytest.mark.parametrize("is_given", [False, True])
def test_startup_and_shutdown_calls_in_a_lifespan_run_the_manager(manager, is_given):
    """With the hook of TaskAdmin, too."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI):
        await manager.startup()
        yield
        await manager.shutdown()

    @manager.task(name="one")
    def one() -> int:
        return 1

    app = FastAPI(lifespan=lifespan)
    if is_given:
        manager.init_app(app)
    with TestClient(app):
        run = manager.duly.runs.get(adding(manager).add_task(one))
        assert run.result(timeout=SOON) == 1
    with pytest.raises(ManagerNotStarted):
        adding(manager).add_task(one)
    assert [worker.state for worker in manager.duly.workers.list()] == ["stopped"]


@pytest.mark.stores("sqlite-wal")
def test_adding_before_the_manager_has_started_is_an_error(manager):
    """The task is never dropped silently."""

    @manager.task(name="one")
    def one() -> None: ...

    with pytest.raises(LifespanNotStarted, match="TaskAdmin"):
        adding(manager).add_task(one)
    assert manager.duly.runs.list() == []


@pytest.mark.stores("sqlite-wal")
def test_a_request_schedules_nothing_before_the_manager_has_started(manager):
    @manager.task(name="one")
    def one() -> None: ...

    app = FastAPI()
    manager.init_app(app)

    @app.post("/")
    async def schedule() -> None:
        await manager.schedule_once(one, run_at=datetime.now(UTC), run_key="one")

    with pytest.raises(ManagerNotStarted):
        TestClient(app).post("/")
    assert manager.duly.runs.list() == []


@pytest.mark.stores("sqlite-wal")
def test_an_endpoint_that_would_receive_in_memory_tasks_is_refused_at_the_start(manager):
    app = FastAPI()
    manager.init_app(app)

    @app.post("/orders")
    def order(tasks: ManagedBackgroundTasks) -> None: ...

    with pytest.raises(BadOption, match=r"/orders: .*Depends.*auto_install"), TestClient(app):
        pass
    manager.install(app := FastAPI())
    app.post("/orders")(order)
    with TestClient(app):
        pass


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("way", ["plain", "awaited", "depends"])
def test_a_plain_function_runs_after_the_response_as_in_fastapi(manager, way, caplog):
    log_notice.cache_clear()
    done = []
    app = FastAPI()
    manager.install(app)

    @app.post("/plain")
    def plain(tasks: BackgroundTasks) -> str:
        # An argument that no database could store.
        return tasks.add_task(done.append, object)

    @app.post("/awaited")
    async def awaited(tasks: BackgroundTasks) -> str:
        return await tasks.aadd_task(done.append, object)

    @app.post("/depends")
    async def depends(tasks: Annotated[BackgroundTasks, Depends(manager.get_tasks)]) -> str:
        return tasks.add_task(done.append, object)

    with TestClient(app) as client:
        answer = client.post(f"/{way}")

    assert answer.status_code == 200
    assert UUID(answer.json())
    assert done == [object]
    assert manager.store.list() == []
    assert "runs in this process alone" in caplog.text


@pytest.mark.stores("sqlite-wal")
def test_a_plain_function_cannot_have_task_options(manager):
    app = FastAPI()
    manager.install(app)
    done = []

    @app.post("/")
    def add(tasks: BackgroundTasks) -> None:
        with pytest.raises(BadOption, match="decorate it"):
            tasks.add_task(done.append, 1, idempotency_key="k")

    with TestClient(app) as client:
        assert client.post("/").status_code == 200
    assert done == []


@pytest.mark.stores("sqlite-wal")
def test_only_tasks_can_be_added_outside_requests(manager):
    with serving(manager), pytest.raises(BadOption, match="decorate it"):
        adding(manager).add_task(print, "hello")


def test_a_named_task_runs_and_can_be_retried(manager):
    fails = [True, False]

    @manager.task(name="billing.charge")
    def charge() -> str:
        if fails.pop(0):
            raise ValueError("declined")
        return "paid"

    with serving(manager):
        run = manager.duly.runs.get(adding(manager).add_task(charge))
        with pytest.raises(Exception, match="declined"):
            run.result(timeout=SOON)
        assert run.retry().result(timeout=SOON) == "paid"


@pytest.mark.stores("sqlite-wal")
def test_two_functions_of_one_name_are_two_tasks_and_of_one_identity_are_an_error(manager):
    """Functions of one name in different modules have different task names."""

    def process() -> None: ...

    manager.task(name="email.process")(process)
    for module in ("billing", "shipping"):
        exec("def process(): pass", namespace := {"__name__": module})  # noqa: S102
        manager.task()(namespace["process"])
    with pytest.raises(BadOption, match="pass name="):
        manager.task()(lambda: None)
    with pytest.raises(DuplicateTask):

        @manager.task(name="email.process")
        def another() -> None: ...


def test_arguments_keep_their_types_across_a_restart(manager_of):
    """Arguments that cannot be stored are refused when the task is added."""
    before, after = manager_of(requeue_pending=True), manager_of(requeue_pending=True)
    got = []

    def keep(*values) -> None:
        got.extend(values)

    for manager in (before, after):
        manager.task(name="keep")(keep)
    values = [
        date(2026, 1, 2),
        datetime(2026, 1, 2, tzinfo=UTC),
        UUID(int=7),
        Decimal("1.10"),
        b"\x00\xff",
        (1, 2),
    ]
    with serving(before):
        before.duly.queues.pause("default")
        task_id = adding(before).add_task(keep, *values)
        with pytest.raises(PayloadError):
            adding(before).add_task(keep, object())
        with pytest.raises(PayloadError, match="make all keys str"):
            adding(before).add_task(keep, {1: "one"})
    after.duly.queues.resume("default")
    with serving(after):
        after.duly.runs.get(task_id).result(timeout=SOON)
    assert got == values
    assert [type(each) for each in got] == [type(each) for each in values]


def test_a_key_makes_one_task_unless_that_task_has_failed(manager):
    """In fastapi-taskflow, which records a key after the run, two processes both ran the task."""
    ran = []

    @manager.task(name="charge")
    def charge(order: int) -> None:
        ran.append(order)
        if len(ran) == 1:
            raise ValueError("declined")

    def add(order: int) -> str:
        return adding(manager).add_task(charge, order, idempotency_key="order-1")

    with serving(manager):
        first = manager.duly.runs.get(add(1))
        with pytest.raises(Exception, match="declined"):
            first.result(timeout=SOON)
        again = manager.duly.runs.get(add(1))
        again.result(timeout=SOON)
        assert add(1) == add(2) == again.id != first.id
    assert ran == [1, 1]


def test_a_task_is_not_forgotten_before_its_key(manager):
    @manager.task(name="charge")
    def charge() -> None: ...

    with serving(manager):
        task_id = adding(manager).add_task(charge, idempotency_key="k")
        manager.duly.runs.get(task_id).result(timeout=SOON)
        assert manager.duly.store.do(Prune(0, 10)).runs == 0
        assert adding(manager).add_task(charge, idempotency_key="k") == task_id
    assert [run.id for run in manager.duly.runs.list()] == [task_id]


def test_a_task_can_read_its_context_and_log_lines(manager, caplog):
    seen = []

    @manager.task(name="look", retries=1)
    async def look() -> None:
        seen.append(get_task_context())
        task_log("trying", level="warning", attempt=len(seen))
        if len(seen) == 1:
            raise ValueError

    with serving(manager):
        task_id = adding(manager).add_task(look, tags={"tenant": "a"})
        manager.duly.runs.get(task_id).result(timeout=SOON)
    assert [each.attempt for each in seen] == [0, 1]
    assert {(each.task_id, each.func_name) for each in seen} == {(task_id, "look")}
    assert seen[0].tags == {"tenant": "a"}
    assert [line.endswith("Z trying") for line in manager.store.get(task_id).logs] == [True, True]


@pytest.mark.stores("sqlite-wal")
def test_code_outside_tasks_has_no_context_and_logs_to_the_standard_log(manager, caplog):
    task_log("100 %", level="error")

    assert get_task_context() is None
    assert caplog.record_tuples == [("duly.taskflow", 40, "100 %")]


def test_an_async_task_runs_on_the_loop_of_the_application_and_is_cancelled_there(manager):
    begun, ended = threading.Event(), []

    @manager.task(name="sleep", persist=True)
    async def sleep() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(asyncio.get_running_loop())

    with serving(manager):
        run = manager.duly.runs.get(adding(manager).add_task(sleep))
        assert begun.wait(SOON)
        assert run.cancel() == "requested"
        with pytest.raises(Exception, match="cancelled"):
            run.result(timeout=SOON)
    assert len(ended) == 1


@pytest.mark.stores("sqlite-wal")
def test_impossible_task_options_are_refused(manager, tmp_path):
    with pytest.raises(BadOption, match="Redis"):
        RedisBackend("redis://localhost")
    with pytest.raises(BadOption, match="snapshot_backend"):
        TaskManager(snapshot_backend=object())
    with pytest.raises(BadOption, match="executor"):
        manager.task(executor="gpu")(lambda: None)
    for wrong in ({"backoff": 0.5}, {"delay": -1}, {"retries": False}):
        with pytest.raises(BadOption, match=r"retries|Retry"):
            manager.task(**wrong)(lambda: None)
    with pytest.raises(BadOption, match="executor='async' needs an async def"):
        manager.task(executor="async", name="none")(lambda: None)
    with pytest.raises(BadOption, match="executor='thread' needs a plain def"):
        manager.task(executor="thread", name="none")(asyncio.sleep)
    with pytest.raises(BadOption, match="module-level"):
        manager.task(executor="process")(lambda: None)
    with pytest.raises(BadOption, match="retention_days"):
        TaskManager(retention_days=0)
    with pytest.raises(BadOption, match="not both"):
        TaskManager(snapshot_db="tasks.db", duly=manager.duly)
    assert SqliteBackend("a.db").url == "sqlite:///a.db"
    assert PostgresBackend("postgresql://h/d").url == "postgresql://h/d"

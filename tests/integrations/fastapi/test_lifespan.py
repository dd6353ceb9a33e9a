"""`duly_lifespan`: it composes, works on the application's loop, and drains."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from starlette.applications import Starlette

from duly import BadOption, Duly
from duly.dashboard import dashboard
from duly.errors import LifespanNotStarted, StoreRefused
from duly.integrations.fastapi import DulyTasks, duly_lifespan
from tests.servers.processes import wait_until

SOON = 20.0


@pytest.fixture
def duly(store_url):
    with closing(Duly(store_url)) as duly:
        yield duly


def test_tasks_that_a_request_adds_are_run_by_the_application_itself(duly):
    @duly.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    api = FastAPI(lifespan=duly_lifespan(duly))

    @api.post("/numbers/{number}")
    async def add(number: int, tasks: DulyTasks) -> str:
        return (await tasks.aadd_task(double, number)).id

    @api.post("/plain/{number}")
    def add_plainly(number: int, tasks: DulyTasks) -> str:
        return tasks.add_task(double, number).id

    with TestClient(api) as client:
        runs = [client.post(f"/{path}/21").json() for path in ("numbers", "plain")]
        assert [duly.runs.get(run).result(timeout=SOON) for run in runs] == [42, 42]


def test_an_async_task_runs_on_the_loop_of_the_application(duly):
    loops = {}

    @duly.task(name="look")
    async def look() -> None:
        loops["task"] = asyncio.get_running_loop()

    @asynccontextmanager
    async def inner(_api: FastAPI) -> AsyncIterator[None]:
        loops["application"] = asyncio.get_running_loop()
        yield

    with TestClient(FastAPI(lifespan=duly_lifespan(duly, inner=inner))):
        look.enqueue().result(timeout=SOON)
    assert loops["task"] is loops["application"]


def test_the_lifespan_of_the_application_is_open_while_tasks_run(duly):
    said = []
    is_running = threading.Event()

    @duly.task(name="slow")
    async def slow() -> None:
        said.append("task begins")
        is_running.set()
        await asyncio.sleep(0.3)
        said.append("task ends")

    @asynccontextmanager
    async def inner(_api: FastAPI) -> AsyncIterator[None]:
        said.append("pool opens")
        yield
        said.append("pool closes")

    slow.enqueue()
    with TestClient(FastAPI(lifespan=duly_lifespan(duly, inner=inner))):
        assert is_running.wait(SOON)
    assert said == ["pool opens", "task begins", "task ends", "pool closes"]


def test_the_state_of_the_applications_lifespan_reaches_requests(duly):
    @asynccontextmanager
    async def inner(_api: FastAPI) -> AsyncIterator[Mapping[str, str]]:
        yield {"greeting": "hello"}

    api = FastAPI(lifespan=duly_lifespan(duly, inner=inner))

    @api.get("/")
    def greet(request: Request) -> str:
        return request.state.greeting

    with TestClient(api) as client:
        assert client.get("/").json() == "hello"


def test_one_application_serves_two_duly_instances(duly, tmp_path):
    with closing(Duly(f"sqlite:///{tmp_path / 'other.db'}")) as other:

        @duly.task(name="one")
        def one() -> int:
            return 1

        @other.task(name="two")
        def two() -> int:
            return 2

        api = FastAPI(lifespan=duly_lifespan(other, inner=duly_lifespan(duly)))

        @api.post("/")
        def add(tasks: DulyTasks) -> list[int]:
            runs = [tasks.add_task(one), tasks.add_task(two)]
            return [run.result(timeout=SOON) for run in runs]

        with TestClient(api) as client:
            assert client.post("/").json() == [1, 2]


def test_a_mounted_application_is_served_by_the_outer_one(duly):
    @duly.task(name="one")
    def one() -> int:
        return 1

    inside = FastAPI()

    @inside.post("/")
    def add(tasks: DulyTasks) -> int:
        return tasks.add_task(one).result(timeout=SOON)

    api = Starlette(lifespan=duly_lifespan(duly))
    api.mount("/inside", inside)
    with TestClient(api) as client:
        assert client.post("/inside/").json() == 1


@pytest.mark.stores("sqlite-wal")
def test_without_a_started_lifespan_adding_a_task_is_an_error(duly):
    @duly.task(name="one")
    def one() -> int:
        return 1

    inside = FastAPI(lifespan=duly_lifespan(duly))

    @inside.post("/")
    def add(tasks: DulyTasks) -> None:
        tasks.add_task(one)

    outside = FastAPI()
    outside.mount("/inside", inside)
    with pytest.raises(LifespanNotStarted, match="with TestClient"):
        TestClient(inside).post("/")
    with TestClient(outside) as client, pytest.raises(LifespanNotStarted, match="outermost"):
        client.post("/inside/")
    assert duly.runs.list() == []


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("path", ["/plain", "/async", "/many"])
def test_a_direct_enqueue_without_a_started_lifespan_is_an_error(duly, path):
    @duly.task(name="one")
    def one() -> int:
        return 1

    api = FastAPI(lifespan=duly_lifespan(duly))

    @api.post("/plain")
    def enqueue() -> None:
        one.enqueue()

    @api.post("/async")
    async def aenqueue() -> None:
        await one.aenqueue()

    @api.post("/many")
    async def enqueue_many() -> None:
        duly.enqueue_many([one.call()])

    assert duly.runs.list() == []  # The store is open already.
    with pytest.raises(LifespanNotStarted, match="with TestClient"):
        TestClient(api).post(path)
    assert duly.runs.list() == []
    with TestClient(api) as client:
        client.post(path).raise_for_status()
    assert len(duly.runs.list()) == 1


@pytest.mark.stores("sqlite-wal")
def test_scripts_and_lifespans_can_enqueue_without_a_running_worker(duly):
    @duly.task(name="one")
    def one() -> int:
        return 1

    ours = duly_lifespan(duly)

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        await one.aenqueue()
        async with ours(api):
            yield

    async def script() -> None:
        await one.aenqueue()

    one.enqueue()
    asyncio.run(script())
    with TestClient(FastAPI(lifespan=lifespan)):
        assert len(duly.runs.list()) == 3


@pytest.mark.stores("sqlite-wal")
def test_only_tasks_of_this_application_can_be_added(duly):
    stranger = Duly("sqlite://")

    @stranger.task(name="strange")
    def strange() -> None: ...

    def plain() -> None: ...

    api = FastAPI(lifespan=duly_lifespan(duly))

    @api.post("/{which}")
    def add(which: str, tasks: DulyTasks) -> None:
        tasks.add_task(plain if which == "plain" else strange)  # type: ignore[arg-type]

    with TestClient(api) as client:
        with pytest.raises(BadOption, match=r"decorate it with @app\.task"):
            client.post("/plain")
        with pytest.raises(BadOption, match="has not started"):
            client.post("/strange")


@pytest.mark.stores("sqlite-wal")
def test_worker_settings_are_refused_without_a_worker(duly):
    with pytest.raises(BadOption, match="concurrency"):
        duly_lifespan(duly, worker=False, concurrency=3)


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize(
    "wrong",
    [
        {"concurency": 3},
        {"loop": None},
        {"concurrency": "3"},
        {"async_limit": 0},
        {"process_limit": 1.5},
        {"queues": "mail:many"},
        {"queues": ["mail"]},
        {"grace": float("nan")},
        {"grace": "30"},
    ],
)
def test_invalid_worker_settings_are_refused_at_the_call(duly, wrong):
    (name,) = wrong
    with pytest.raises(BadOption, match=name if name != "queues" else "queue"):
        duly_lifespan(duly, **wrong)


def test_tasks_of_an_application_without_a_worker_wait_for_another_worker(duly):
    @duly.task(name="one")
    def one() -> int:
        return 1

    api = FastAPI(lifespan=duly_lifespan(duly, worker=False))

    @api.post("/")
    def add(tasks: DulyTasks) -> str:
        return tasks.add_task(one).id

    with TestClient(api) as client:
        run = duly.runs.get(client.post("/").json())
        assert run.state == "queued"
    duly.worker().drain(timeout=SOON)
    assert run.result(timeout=SOON) == 1


@pytest.mark.stores("sqlite-wal")
def test_an_application_whose_store_is_unavailable_does_not_start(tmp_path):
    duly = Duly(f"sqlite:///{tmp_path / 'no' / 'such' / 'folder' / 'duly.db'}")
    said = []

    @asynccontextmanager
    async def inner(_api: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            said.append("pool closes")

    api = FastAPI(lifespan=duly_lifespan(duly, inner=inner))
    with pytest.raises(StoreRefused, match="create it"), TestClient(api):
        pass
    assert said == ["pool closes"]


def test_a_task_added_on_a_session_exists_only_if_the_session_commits(duly, store_url, tmp_path):
    @duly.task(name="one")
    def one() -> int:
        return 1

    address = store_url.replace("sqlite://", "sqlite+aiosqlite://").replace(
        "postgresql://", "postgresql+psycopg://"
    )
    engine = create_async_engine(address)
    api = FastAPI(lifespan=duly_lifespan(duly, worker=False))

    @api.post("/{fate}")
    async def add(fate: str, tasks: DulyTasks) -> str:
        async with AsyncSession(engine) as session:
            await session.execute(text("select 1"))
            run = await tasks.using(connection=session, key=f"key-{fate}").aadd_task(one)
            await (session.commit() if fate == "commit" else session.rollback())
            return run.id

    with TestClient(api) as client:
        kept, undone = client.post("/commit").json(), client.post("/rollback").json()
    assert [run.id for run in duly.runs.list()] == [kept] != [undone]


def test_a_blocked_loop_loses_no_lease(duly):
    """A thread of the engine renews the lease, so the run continues in place and runs once."""
    began = []

    @duly.task(name="patient")
    async def patient() -> None:
        began.append(asyncio.get_running_loop())
        await asyncio.sleep(2.8)

    api = FastAPI(lifespan=duly_lifespan(duly, lease=2, beat=0.5))

    @api.post("/block")
    async def block() -> None:
        time.sleep(2.5)  # noqa: ASYNC251 - the mistake that this test is about

    # The other worker would take over a run whose lease the blocked worker had lost.
    with TestClient(api) as client:
        run = patient.enqueue()
        wait_until(lambda: bool(began), seconds=SOON, what="the task begins")
        with duly.worker(lease=2, beat=0.5):
            client.post("/block")
            run.result(timeout=SOON)
    assert len(began) == 1
    assert [attempt.outcome for attempt in run.attempts()] == ["returned"]


def test_a_typical_application_works_with_duly(duly, store_url):
    """It has its own lifespan, sessions, a guarded dashboard, and a task in a transaction."""
    address = store_url.replace("sqlite://", "sqlite+aiosqlite://").replace(
        "postgresql://", "postgresql+psycopg://"
    )
    engine = create_async_engine(address)
    said = []

    @asynccontextmanager
    async def my_lifespan(_api: FastAPI) -> AsyncIterator[None]:
        said.append("begins")
        yield
        await engine.dispose()
        said.append("ends")

    async def get_db() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as session, session.begin():
            yield session

    def require_admin(request: Request) -> str | None:
        return "ann" if request.headers.get("authorization") == "ann" else None

    @duly.task(name="welcome")
    async def welcome(user_id: int) -> str:
        return f"welcome, {user_id}"

    api = FastAPI(lifespan=duly_lifespan(duly, worker=True, inner=my_lifespan))
    api.mount("/duly", dashboard(duly, auth=require_admin))

    @api.post("/users/{user_id}")
    async def create(user_id: int, db: Annotated[AsyncSession, Depends(get_db)]) -> str:
        await db.execute(text("select 1"))
        run = await welcome.using(connection=db, key=f"welcome-{user_id}").aenqueue(user_id)
        return run.id

    with TestClient(api) as client:
        ids = {client.post("/users/7").json() for _ in range(2)}
        (run_id,) = ids
        assert duly.runs.get(run_id).result(timeout=SOON) == "welcome, 7"
        assert client.get("/duly/").status_code == 403
        assert run_id in client.get("/duly/runs", headers={"authorization": "ann"}).text
    assert said == ["begins", "ends"]


@pytest.mark.stores("sqlite-wal")
def test_a_fastapi_dependency_is_refused_as_the_auth_of_the_dashboard(duly):
    def user() -> str:
        return "ann"

    def require_admin(user: Annotated[str, Depends(user)]) -> str:
        return user

    def require_boss(user: str = Depends(user)) -> str:
        return user

    for wrong in (require_admin, require_boss, "ann"):
        with pytest.raises(BadOption, match="auth"):
            dashboard(duly, auth=wrong)

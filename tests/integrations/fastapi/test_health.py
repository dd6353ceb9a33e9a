"""`/livez` and `/readyz`."""

import asyncio
import threading
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from duly import Duly, StoreUnavailable
from duly.integrations.fastapi import duly_lifespan, health, health_router
from tests.servers.processes import wait_until

SOON = 20.0


@pytest.fixture
def duly(store_url):
    with closing(Duly(store_url)) as duly:
        yield duly


def served(duly, **options) -> FastAPI:
    api = FastAPI(lifespan=duly_lifespan(duly, **options))
    api.include_router(health_router())
    return api


def open_files() -> list[str]:
    """Return the paths of the files that this process has open."""
    files = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            files.append(str(descriptor.readlink()))
    return files


def is_ready(client: TestClient) -> bool:
    return client.get("/readyz").status_code == 200


@pytest.mark.parametrize("worker", [True, False])
def test_an_application_with_its_store_is_live_and_ready(duly, worker):
    with TestClient(served(duly, worker=worker)) as client:
        ok = {"status": "ok", "problems": []}
        for path, told in (("/livez", ok), ("/readyz", ok | {"schedule_lag": 0.0})):
            answer = client.get(path)
            assert answer.status_code == 200
            assert answer.json() == told


def test_readyz_reports_the_schedule_lag_and_stays_ready(duly):
    """The lag is the age of the oldest due instant that has not fired."""

    @duly.task(name="tick")
    def tick() -> None: ...

    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    duly.schedules.add("tick", tick, at=hour_ago)
    duly.schedules.add("later", tick, cron="0 0 1 1 *")
    with TestClient(served(duly, worker=False)) as client:
        behind = client.get("/readyz")
        duly.worker().drain(timeout=SOON)
        caught_up = client.get("/readyz")
    assert behind.status_code == 200
    assert 3600 <= behind.json()["schedule_lag"] < 3700
    assert caught_up.json()["schedule_lag"] == 0.0


@pytest.mark.stores("sqlite-wal")
def test_an_application_that_was_not_started_is_not_ready(duly):
    answer = TestClient(served(duly)).get("/readyz")
    assert answer.status_code == 503
    assert "not started" in answer.json()["problems"][0]


@pytest.mark.stores("sqlite-wal")
def test_readyz_reports_an_unavailable_store_without_its_address(duly, monkeypatch):
    def away():
        raise StoreUnavailable("could not connect to host secret.example")

    with TestClient(served(duly)) as client:
        monkeypatch.setattr(duly.store, "read_schema", away)
        answer = client.get("/readyz")
        assert client.get("/livez").status_code == 200
    assert answer.status_code == 503
    assert answer.json()["problems"] == ["the store cannot be used (StoreUnavailable)"]


@pytest.mark.stores("sqlite-wal")
def test_an_application_whose_threads_are_all_busy_is_still_ready(duly):
    may_continue = threading.Event()
    api = served(duly, worker=False)

    @api.get("/busy")
    async def busy() -> None:
        for _ in range(50):
            asyncio.get_running_loop().run_in_executor(None, may_continue.wait, SOON)

    with TestClient(api) as client:
        client.get("/busy").raise_for_status()
        try:
            assert is_ready(client)
        finally:
            may_continue.set()


@pytest.mark.stores("sqlite-wal")
def test_a_store_that_hangs_is_queried_by_few_probes(duly, monkeypatch):
    """Probes continue for as long as the store hangs, and each would leave a thread."""
    may_continue = threading.Event()
    asked = []
    monkeypatch.setattr(health, "_TIMEOUT_SECONDS", 0.01)
    with TestClient(served(duly, worker=False)) as client:
        monkeypatch.setattr(
            duly.store, "read_schema", lambda: (asked.append(1), may_continue.wait(SOON))
        )
        answers = [client.get("/readyz").status_code for _ in range(20)]
        may_continue.set()
        wait_until(lambda: is_ready(client), seconds=SOON, what="the application is ready again")
    assert set(answers) == {503}
    assert 1 <= len(asked) < len(answers)


@pytest.mark.stores("sqlite-wal")
def test_a_probe_that_outlasts_its_application_does_not_open_the_store_again(duly, monkeypatch):
    asking: list[threading.Thread] = []
    may_continue = threading.Event()

    def hang() -> None:
        asking.append(threading.current_thread())
        may_continue.wait(SOON)

    monkeypatch.setattr(health, "_TIMEOUT_SECONDS", 0.01)
    with TestClient(served(duly, worker=False)) as client:
        monkeypatch.setattr(duly.store, "read_schema", hang)
        assert not is_ready(client)
        wait_until(lambda: asking, seconds=SOON, what="the probe asks")
    path = str(duly.store.path)
    duly.close()
    may_continue.set()
    asking[0].join(SOON)

    assert not [file for file in open_files() if file.startswith(path)]


@pytest.mark.stores("sqlite-wal")
def test_a_worker_whose_heartbeats_fail_is_not_ready(duly, monkeypatch):
    with TestClient(served(duly, lease=2, beat=0.5)) as client:
        assert is_ready(client)

        def away(_pulse, _workers):
            raise StoreUnavailable("no beat reaches it")

        monkeypatch.setattr(type(duly.store.heartbeats()), "beat", away)
        wait_until(
            lambda: client.get("/readyz").status_code == 503,
            seconds=SOON,
            what="the lost heartbeats are noticed",
        )
        monkeypatch.undo()
        wait_until(
            lambda: client.get("/readyz").status_code == 200, seconds=SOON, what="it is back"
        )

"""The FastAPI program with its requeue table, moved to duly and killed: no row is lost."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from duly import Duly
from duly.compat.fastapi_taskflow.cutover import TASK_ID_TAG
from tests.compat.fastapi_taskflow.left_behind import LeftBehind
from tests.compat.fastapi_taskflow.uvicorn_server import SOON, uvicorn
from tests.servers.processes import wait_until

PRODUCTS = range(20)
LATER = 99
UNFINISHED = ("queued", "running")

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(240),
    pytest.mark.stores("sqlite-wal", "postgres"),
]


@pytest.fixture
def program(store_url, tmp_path):
    """Return the database of the program's tasks, and the application that uvicorn serves."""
    if store_url.startswith("postgres"):
        return store_url, "tests.compat.fastapi_taskflow.seed_on_postgres:app"
    return f"sqlite:///{tmp_path / 'tasks.db'}", "examples.taskflow_app:app"


def test_tasks_in_the_old_tables_run_although_the_process_is_killed(program, tmp_path):
    store, application = program
    with LeftBehind(store) as left:
        ids = [left.pending("sync_inventory", [product]) for product in PRODUCTS]
        ids += [left.pending("build_report", [product]) for product in PRODUCTS]
        left.scheduled("later", "build_report", datetime.now(UTC) + timedelta(seconds=3), [LATER])
        served = partial(uvicorn, application, tmp_path, SHOP_DB="shop.db", SEED_STORE=store)
        with served() as (server, _):
            server.kill()
            server.wait(SOON)
        with closing(Duly(store)) as duly:
            with served():
                wait_until(
                    lambda: LATER in reports(tmp_path) and not duly.runs.list(state=UNFINISHED),
                    seconds=SOON,
                    what="all imported runs have ended",
                )
            runs = duly.runs.list(limit=200)
        assert left.rows() == []
        claims = sum(run.record.claim_number for run in runs if run.record.task.endswith("report"))

    assert stock(tmp_path) == [(product, 10 * product) for product in PRODUCTS]
    assert set(reports(tmp_path)) == {*PRODUCTS, LATER}
    # Only an interrupted task with `requeue_on_interrupt` begins again.
    assert len(PRODUCTS) + 1 <= reports(tmp_path).total() <= claims
    assert {run.state for run in runs} == {"succeeded"}
    tags = [json.loads(run.record.tags).get(TASK_ID_TAG) for run in runs]
    assert sorted(filter(None, tags)) == sorted(ids)
    assert len(runs) == len(ids) + 1


def stock(folder):
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        return database.execute("SELECT id, stock FROM inventory ORDER BY id").fetchall()


def reports(folder) -> Counter[int]:
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        return Counter(number for (number,) in database.execute("SELECT id FROM reports"))

"""The FastAPI program with its requeue table, moved to duly and killed: no row is lost."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from duly import Duly
from duly.compat.fastapi_taskflow.cutover import TASK_ID_TAG
from tests.compat.fastapi_taskflow.left_behind import LeftBehind
from tests.compat.fastapi_taskflow.running import SOON, uvicorn
from tests.servers.processes import wait_until

PRODUCTS = range(20)
LATER = 99
UNFINISHED = ("queued", "running")

pytestmark = [pytest.mark.process, pytest.mark.timeout(240), pytest.mark.stores("sqlite-wal")]


def test_what_it_left_in_its_tables_runs_though_the_process_is_killed(tmp_path):
    with LeftBehind(f"sqlite:///{tmp_path / 'tasks.db'}") as left:
        ids = [left.pending("sync_inventory", [product]) for product in PRODUCTS]
        ids += [left.pending("build_report", [product]) for product in PRODUCTS]
        left.scheduled("later", "build_report", datetime.now(UTC) + timedelta(seconds=3), [LATER])
        served = ("examples.taskflow_app:app", tmp_path)
        with uvicorn(*served, SHOP_DB="shop.db") as (server, _):
            server.kill()
            server.wait(SOON)
        with closing(Duly(f"sqlite:///{tmp_path / 'tasks.db'}")) as duly:
            with uvicorn(*served, SHOP_DB="shop.db"):
                wait_until(
                    lambda: LATER in reports(tmp_path) and not duly.runs.list(state=UNFINISHED),
                    seconds=SOON,
                    what="all runs of what was left have ended",
                )
            runs = duly.runs.list(limit=200)
        assert left.rows() == []
        claims = sum(run.record.claim_number for run in runs if run.record.task.endswith("report"))

    assert stock(tmp_path) == [(product, 10 * product) for product in PRODUCTS]
    assert set(reports(tmp_path)) == {*PRODUCTS, LATER}
    # One that was interrupted has `requeue_on_interrupt` begin it again, and nothing else does.
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

"""Several uvicorn processes of one manager: stopped, killed, signed in to, with schedules."""

import os
import time
from contextlib import closing

import pytest
from fastapi.testclient import TestClient

from duly import Duly
from tests.compat.fastapi_taskflow.crowd import (
    SCHEDULES,
    Adders,
    Crowd,
    judge_tasks,
    judge_ticks,
    kill,
    visit,
)
from tests.compat.fastapi_taskflow.served import build
from tests.integrations.evidence import KILLS_VARIABLE, keep
from tests.servers.processes import wait_until

IS_PROOF = KILLS_VARIABLE in os.environ
PROCESSES = 4 if IS_PROOF else 2
PENDING = 40 if IS_PROOF else 10
KILLS, TASKS = 200, 1_000
CRON_SECONDS = 60
SOON = 60.0
SECONDS = 60 + 5 * KILLS

pytestmark = [pytest.mark.process, pytest.mark.timeout(2 * SECONDS if IS_PROOF else 240)]


@pytest.fixture
def duly(store_url):
    with closing(Duly(store_url)) as duly:
        yield duly


def check(scenario: str, where: str, document: dict) -> None:
    """Save the outcome of a scenario, and check it."""
    keep(scenario, where, document, "fastapi", "uvicorn")
    assert document["broken"] == []


def unfinished(duly: Duly) -> bool:
    return bool(duly.runs.list(state=("queued", "running"), limit=1))


def pause_ticks(duly: Duly) -> None:
    for schedule in duly.schedules.list():
        duly.schedules.pause(schedule.name)


def test_waiting_tasks_of_stopped_processes_are_recovered(duly, store_kind, tmp_path):
    """Each process runs one task, others wait, and all processes are stopped."""
    with Crowd(duly, tmp_path, processes=PROCESSES) as crowd:
        crowd.wait_until_all_serve()
        ids = [crowd.post(f"/add/requeued-loop/{number}") for number in range(PROCESSES + PENDING)]
        wait_until(
            lambda: crowd.begun().total() == PROCESSES, seconds=SOON, what="one runs in each"
        )
        cancelled = crowd.post("/add/requeued-loop/to-be-cancelled")
        wrong_visits = visit(crowd, cancelled)
        wait_until(
            lambda: all(duly.schedules.firings(name, limit=1) for name in SCHEDULES),
            seconds=SOON,
            what="each schedule was due",
        )
        crowd.stop()
    pause_ticks(duly)
    pending = len(duly.runs.list(task="requeued-loop", state="queued", limit=200))
    begun = crowd.begun()
    app, manager = build(duly.url, crowd.notes, at_once=PENDING)
    with closing(manager.duly), TestClient(app):
        wait_until(
            lambda: not duly.runs.list(task="requeued-loop", state=("queued", "running"), limit=1),
            seconds=SOON,
            what="all are recovered",
        )
    ends = [duly.runs.get(run_id).state.value for run_id in ids]
    instants, wrong_ticks = judge_ticks(duly, lenient=True)

    document = {
        "processes": PROCESSES,
        "pending": pending,
        "recovered": ends.count("succeeded"),
        "instants": instants,
        "broken": wrong_visits + wrong_ticks,
    }
    if document["recovered"] != PROCESSES + PENDING:
        document["broken"].append(f"of {len(ids)} tasks {ends.count('succeeded')} were recovered")
    if any(times > 2 - (what not in begun) for what, times in crowd.begun().items()):
        document["broken"].append("one that waited has begun twice")
    check("taskflow-stops", store_kind, document)
    assert pending == PROCESSES + PENDING
    assert duly.runs.get(cancelled).state == "cancelled"
    assert "requeued to-be-cancelled" not in crowd.begun()
    assert all(instants.values())


if IS_PROOF:

    def test_killed_processes_lose_nothing_and_begin_nothing_twice(duly, store_kind, tmp_path):
        """Every accepted task ends as its row of the shutdown table says."""
        variables = {"SERVED_SECONDS": "0.1", "SERVED_AT_ONCE": "5"}
        with (
            Crowd(duly, tmp_path, processes=PROCESSES, patience=5, **variables) as crowd,
            Adders(crowd, count=3) as adders,
        ):
            crowd.wait_until_all_serve()
            kills = kill(crowd, adders, KILLS, tasks=TASKS, seconds=SECONDS)
            adders.__exit__()
            pause_ticks(duly)
            wait_until(lambda: not unfinished(duly), seconds=SECONDS, what="all have ended")
            crowd.stop()
        ends, broken = judge_tasks(duly, crowd, adders.accepted)
        instants, wrong_ticks = judge_ticks(duly, lenient=True)

        document = {
            "processes": PROCESSES,
            "kills": kills,
            "accepted": len(adders.accepted),
            "ends": dict(sorted(ends.items())),
            "instants": instants,
            "broken": broken + wrong_ticks,
        }
        check("taskflow-kills", store_kind, document)
        assert kills == KILLS
        assert len(adders.accepted) >= TASKS

    @pytest.mark.parametrize("processes", [1, 4])
    def test_a_schedule_of_every_second_has_one_run_per_instant(
        duly, store_kind, tmp_path, processes
    ):
        """Two schedules of one function fire every second for one minute."""
        with Crowd(duly, tmp_path, processes=processes) as crowd:
            crowd.wait_until_all_serve()
            time.sleep(CRON_SECONDS + 2)
            pause_ticks(duly)
            wait_until(lambda: not unfinished(duly), seconds=SOON, what="all have ended")
            crowd.stop()
        instants, broken = judge_ticks(duly, lenient=False)

        document = {"processes": processes, "instants": instants, "broken": broken}
        check(f"taskflow-cron-{processes}", store_kind, document)
        assert min(instants.values()) >= CRON_SECONDS

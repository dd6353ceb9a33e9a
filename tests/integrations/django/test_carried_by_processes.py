"""Executions of another backend that several worker processes receive at the same time."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from django.db import connection

from duly.integrations.django import periodic, scheduled_task
from duly.integrations.django.executions import EXECUTION
from duly.store.ops.recovery import Recover
from duly.worker.services.recovery import judge_unknown
from tests.integrations.django import other, tasks
from tests.integrations.django.imports import IMPORTS
from tests.servers.processes import wait_until
from tests.servers.warm import ROOT, Program, warm

SOON = 60.0

pytestmark = pytest.mark.process


def handed_over(app, times: int, task=tasks.count, **kwargs: object) -> list[str]:
    """Fire a schedule this many times. Return the executions that the other backend received."""
    scheduled_task(cron="0 0 1 1 *", name="yearly", kwargs=kwargs)(task)
    with app.worker():
        for _ in range(times):
            app.schedules.run_now("yearly")
        wait_until(lambda: len(other.waiting) == times, seconds=SOON, what="all are handed over")
    return [kwargs[EXECUTION] for _, _, kwargs in other.waiting]


def delivering(url: str, executions: Sequence[str] = (), task: str = "count") -> Program:
    program = ("-m", "tests.integrations.django.delivery_worker", url, task, *executions)
    return warm(*IMPORTS).start(program, log=Path(os.devnull), folder=ROOT, environment=os.environ)


def told(attempts) -> list[str]:
    return [f"{attempt.attempt} {attempt.outcome}" for attempt in attempts]


def call_dead(app) -> None:
    """Declare the worker dead, as after a whole lease without a heartbeat."""
    for worker in app.workers.list():
        if worker.state == "live":
            app.store.do(Recover(worker.id, judge_unknown))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [5, pytest.param(200, marks=pytest.mark.long)])
def test_two_processes_with_the_same_executions_run_each_once(scheduler, project, tmp_path, count):
    effects = tmp_path / "effects"
    executions = handed_over(scheduler, count, path=str(effects))

    processes = [delivering(project, executions) for _ in range(2)]
    ends = [process.wait(timeout=540) for process in processes]

    assert ends == [0, 0]
    done = effects.read_text().splitlines()
    assert len(done) == len(set(done)) == count
    assert {run.state for run in scheduler.runs.list(limit=200)} == {"succeeded"}


def test_the_rows_of_a_run_that_is_killed_before_its_commit_are_written_once(
    scheduler, project, tmp_path
):
    effects = tmp_path / "effects"
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE said (word varchar(20))")
    chosen = tasks.say_and_die_once
    executions = handed_over(scheduler, 1, chosen, path=str(effects))
    assert delivering(project, executions, "say_and_die_once").wait(timeout=SOON) == -9
    assert delivering(project, executions, "say_and_die_once").wait(timeout=SOON) == 0
    call_dead(scheduler)

    periodic.PeriodicTaskScheduler().tick()
    for delivery in other.waiting * 2:
        other.deliver(delivery)

    (run,) = scheduler.runs.list()
    assert run.state == "succeeded"
    assert [(each.attempt, each.outcome) for each in run.attempts()] == [
        (1, "lost"),
        (2, "returned"),
    ]
    assert len(effects.read_text().splitlines()) == 2, "effects outside the database happen twice"
    with connection.cursor() as cursor:
        cursor.execute("SELECT word FROM said")
        assert cursor.fetchall() == [("hello",)]


def test_a_killed_run_that_may_begin_again_does_so_and_counts_its_attempts(
    backend, project, tmp_path
):
    effects = tmp_path / "effects"
    result = tasks.count_and_die_once.enqueue(str(effects))
    assert delivering(project, task="count_and_die_once").wait(timeout=SOON) == -9
    call_dead(backend.app)

    assert delivering(project, task="count_and_die_once").wait(timeout=SOON) == 0

    result.refresh()
    assert (result.status, result.attempts) == ("SUCCESSFUL", 2)
    assert told(backend.app.runs.get(result.id).attempts()) == ["1 lost", "2 returned"]
    assert effects.read_text().splitlines() == [result.id] * 2


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_that_is_killed_after_its_effect_is_interrupted_for_an_operator(
    scheduler, project, tmp_path
):
    effects = tmp_path / "effects"
    executions = handed_over(scheduler, 1, path=str(effects), dies=True)
    process = delivering(project, executions)
    assert process.wait(timeout=SOON) == -9

    with scheduler.worker():
        (run,) = scheduler.runs.list()
        wait_until(lambda: run.refresh().is_final, seconds=120, what="the loss is noticed")
        assert delivering(project, executions).wait(timeout=SOON) == 0

    assert run.refresh().state == "interrupted"
    assert effects.read_text().splitlines() == [run.id]
    assert [dead.id for dead in scheduler.dead.list()] == [run.id]

"""Executions that worker processes of another backend are given, each of them to all at once."""

import subprocess
import sys

import pytest

from duly.integrations.django import scheduled_task
from duly.integrations.django.executions import EXECUTION
from tests.integrations.django import other, tasks
from tests.servers.processes import wait_until

SOON = 60.0

pytestmark = pytest.mark.process


def handed_over(app, count: int, **kwargs: object) -> list[str]:
    """Have a schedule fire so often, and return what the other backend was given of it."""
    scheduled_task(cron="0 0 1 1 *", name="yearly", kwargs=kwargs)(tasks.count)
    with app.worker():
        for _ in range(count):
            app.schedules.run_now("yearly")
        wait_until(lambda: len(other.waiting) == count, seconds=SOON, what="all are handed over")
    return [kwargs[EXECUTION] for _, _, kwargs in other.waiting]


def delivering(url: str, executions: list[str]) -> subprocess.Popen[bytes]:
    program = "tests.integrations.django.delivering"
    return subprocess.Popen([sys.executable, "-m", program, url, *executions])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [5, pytest.param(200, marks=pytest.mark.long)])
def test_two_processes_that_are_given_the_same_do_each_once(scheduler, project, tmp_path, count):
    effects = tmp_path / "effects"
    executions = handed_over(scheduler, count, path=str(effects))

    processes = [delivering(project, executions) for _ in range(2)]
    ends = [process.wait(timeout=540) for process in processes]

    assert ends == [0, 0]
    done = effects.read_text().splitlines()
    assert len(done) == len(set(done)) == count
    assert {run.state for run in scheduler.runs.list(limit=200)} == {"succeeded"}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_one_whose_process_is_killed_behind_its_effect_is_held_for_a_person(
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
    assert [letter.id for letter in scheduler.dead.list()] == [run.id]

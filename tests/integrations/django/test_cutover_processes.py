"""An import from tables of django-periodic-tasks in a database other than duly's."""

from contextlib import closing
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import transaction
from django.utils import timezone

from duly import BadOption
from duly.integrations.django.app import scheduler_app
from tests.integrations.django import left_behind, other
from tests.integrations.django.project import without_schedules
from tests.integrations.django.test_databases import routed
from tests.integrations.django.test_exactly_once import bill

CUT_OVER = "duly.integrations.django.cutover"
BILL = bill.module_path


@pytest.fixture
def scheduler(store_url, tmp_path):
    """Yield the application in duly's database. The old tables are in Django's default database."""
    with routed(store_url, tmp_path):
        other.waiting.clear()
        left_behind.make_tables()
        app = scheduler_app()
        with without_schedules(app), closing(app):
            yield app


@pytest.fixture
def left(scheduler) -> str:
    """Leave a disabled schedule, one with a missed instant, and an execution. Return its id."""
    left_behind.leave_schedule("off", BILL, args=[1], enabled=False)
    missed = timezone.now() - timedelta(hours=1)
    schedule = left_behind.leave_schedule("missed", BILL, args=[2], next_run_at=missed)
    return left_behind.leave_execution(schedule)


def take_over() -> str:
    out = StringIO()
    call_command("duly", "import-periodic-tasks", stdout=out)
    return out.getvalue()


def imported(scheduler, execution: str) -> None:
    """Check that every object exists exactly once."""
    states = {found.name: str(found.state) for found in scheduler.schedules.list()}
    assert states == {"off": "paused", "missed": "active"}
    (fired,) = scheduler.schedules.firings("missed")
    (other_run,) = {run.id for run in scheduler.runs.list()} - {fired.run_id}
    assert scheduler.runs.get(other_run).record.tags == '{"schedule": "missed"}'
    assert left_behind.status_of(execution) == "completed"
    assert left_behind.schedules() == {"off": ("duly-disabled", False), "missed": ("duly", False)}


def test_an_import_that_dies_before_it_commits_has_imported_nothing(scheduler, left, monkeypatch):
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("_mark", "_fire_if_missed"):
        with monkeypatch.context() as patched:
            patched.setattr(f"{CUT_OVER}.{step}", dies)
            with pytest.raises(KeyboardInterrupt):
                take_over()
        assert scheduler.schedules.list() == []
        assert scheduler.runs.list() == []

    take_over()
    imported(scheduler, left)


def test_a_row_whose_import_fails_midway_leaves_nothing(scheduler, left, monkeypatch):
    def fails(*_: object) -> None:
        message = "not now"
        raise BadOption(message)

    with monkeypatch.context() as patched:
        patched.setattr(f"{CUT_OVER}._mark", fails)
        with pytest.raises(Exception, match="could not be imported"):
            take_over()
    assert scheduler.schedules.list() == []

    take_over()
    imported(scheduler, left)


def test_the_next_import_completes_one_that_died_between_its_two_commits(scheduler, left):
    with transaction.atomic():
        take_over()
        transaction.set_rollback(True)
    assert left_behind.status_of(left) == "pending"
    assert len(scheduler.schedules.list()) == len(scheduler.runs.list()) == 2

    take_over()
    imported(scheduler, left)
    assert take_over().startswith("0 schedules")
    imported(scheduler, left)

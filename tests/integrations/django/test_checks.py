"""System checks: each problem is reported with its remedy."""

import os

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from duly.integrations.django.backend import DulyBackend
from duly.integrations.django.checks import check_backend, check_workers
from tests.integrations.django import tasks
from tests.integrations.django.imports import IMPORTS
from tests.integrations.django.project import using
from tests.servers.warm import ROOT, warm


def found(backend: DulyBackend) -> dict[str | None, str]:
    return {message.id: message.hint for message in check_backend(backend)}


def made(**options: str) -> DulyBackend:
    return DulyBackend("checked", {"OPTIONS": options})


def test_a_correct_project_passes_all_checks(backend):
    assert found(backend) == {}


@pytest.mark.stores("sqlite-wal")
def test_an_unusable_database_setting_is_refused_with_a_remedy(store_url, backend):
    assert "default" in found(made(database="nosuch"))["duly.E002"]
    assert found(made(url="postgresql://elsewhere")) == {}
    for options, what in (
        ({"database": "default", "url": "postgresql://elsewhere"}, "not both"),
        ({"databse": "default"}, "databse"),
    ):
        assert "duly.E005" in found(made(**options))
        with pytest.raises(ImproperlyConfigured, match=what):
            made(**options).validate_task(tasks.add)


def test_sqlite_without_immediate_transactions_is_a_warning():
    with using(default=":memory:"):
        assert "IMMEDIATE" in found(made())["duly.W001"]


def test_a_project_without_a_worker_is_a_warning(backend):
    asked = check_workers(databases=["default"])
    assert [message.id for message in asked] == ["duly.W004"]
    with backend.app.worker():
        assert list(check_workers(databases=["default"])) == []
    assert list(check_workers(databases=[])) == []


def test_the_warning_about_missing_workers_is_a_deployment_check(backend):
    def told(**options):
        return {message.id for message in run_checks(databases=["default"], **options)}

    # As `migrate` does, which makes the tables, and `test`, whose database needs no worker.
    assert "duly.W004" not in told()
    assert "duly.W004" in told(include_deployment_checks=True)


@pytest.mark.untouched
def test_missing_tables_are_a_warning(store_url):
    with using(default=store_url):
        (message,) = check_workers(databases=["default"])
    assert message.id == "duly.W003"
    assert "manage.py migrate" in message.msg


@pytest.mark.parametrize(
    ("project", "said"),
    [
        ("check()", ""),
        ("check(database=WAL)", "duly.W001 | set DATABASES"),
        ("check(database={'ENGINE': 'django.db.backends.dummy'})", "duly.E003 | use an SQLite"),
        ("check(options={'databse': 'x'})", "duly.E005"),
        ("check(backend=OTHER['BACKEND'])", "duly.W002 | TASKS = "),
        (
            "check(code='@exactly_once\\n@task()\\ndef bill(): pass')",
            "duly.E006 | put @scheduled_task(…) above @task(…)",
        ),
        ("check(code=AT_TWO + ', queue_name=0)' + BILL)", "duly.E006"),
        # A project that uses duly only for the schedules of other backends has nothing to fix.
        ("check(backend=OTHER['BACKEND'], code=AT_TWO + ')' + BILL)", ""),
        # Applications may import tasks before the rest of Django is ready.
        ("check(code=AT_TWO + ')' + BILL, early=True)", ""),
        # Django 6 checks backends once their tasks are imported.
        ("import duly.integrations.django.tasks_api; check(apps=[])", "duly.E001 | add 'duly."),
    ],
)
def test_manage_py_check_reports_problems(tmp_path, project, said):
    log = tmp_path / "said"
    checking = warm(*IMPORTS).start(
        ["-m", "tests.integrations.django.system_checks", project],
        log=log,
        folder=tmp_path,
        environment=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert checking.wait(60) == 0, log.read_text()
    lines = log.read_text().splitlines()
    assert len(lines) == bool(said), lines
    assert log.read_text().startswith(said)

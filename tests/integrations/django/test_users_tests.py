"""Tests of a user's project, run by Django's own runner and by pytest-django."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from duly.store.store_factory import open_store

ROOT = Path(__file__).parents[3]
CASES = "tests.integrations.django.users.cases"
SETTINGS = "tests.integrations.django.users.settings"
SOON = 240.0
pytestmark = pytest.mark.timeout(SOON + 30)
LEAVES_A_PAGE_OPEN = """
import django
from django.conf import settings

django.setup()
settings.ALLOWED_HOSTS = ["testserver"]
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

call_command("migrate", run_syncdb=True, verbosity=0)
client = Client()
client.force_login(User.objects.create_superuser("ann"))
live = client.get("/duly/runs", headers={"accept": "text/event-stream"})
parts = iter(live.streaming_content)
print(next(parts).decode().splitlines()[0])
"""


def run_tests(url: str, *command: str, test_name: Path | None = None) -> str:
    """Run the tests of the project in a process of their own; return what they print."""
    return run_python(url, "-m", *command, test_name=test_name)


def run_python(url: str, *arguments: str, test_name: Path | None = None) -> str:
    """Run Python with the settings of the project; return what it prints."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "USERS_URL": url,
    } | ({} if test_name is None else {"USERS_TEST_NAME": str(test_name)})
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SOON,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def assert_untouched(url: str) -> None:
    """Assert that nothing was done in the database of production."""
    with closing(open_store(url)) as store:
        assert store.list_workers() == []
        assert store.list_next_schedules(1) == []
        assert store.count_runs().accepted == 0
    if url.startswith("postgresql"):
        with psycopg.connect(url) as connection:
            left = connection.execute(
                "SELECT datname FROM pg_database WHERE datname = 'test_' || current_database()"
            )
            assert left.fetchall() == []


def test_tests_of_a_project_pass_and_leave_production_alone(store_url, tmp_path):
    file = tmp_path / "test.db" if store_url.startswith("sqlite") else None

    run_tests(store_url, "django", "test", CASES, test_name=file)

    assert_untouched(store_url)


@pytest.mark.stores("sqlite-wal")
def test_they_pass_in_memory(store_url):
    run_tests(store_url, "django", "test", CASES)

    assert_untouched(store_url)


def test_they_pass_in_parallel_processes(store_url, tmp_path):
    run_tests(store_url, "django", "test", CASES, "--parallel", "2")

    assert_untouched(store_url)


@pytest.mark.parametrize("option", ["--migrations", "--nomigrations"])
def test_they_pass_with_pytest_django(store_url, tmp_path, option):
    file = tmp_path / "test.db" if store_url.startswith("sqlite") else None
    cases = f"{CASES.replace('.', '/')}.py"
    plain = ("--noconftest", "-c", os.devnull, "--rootdir", str(ROOT), "-p", "no:cacheprovider")

    run_tests(store_url, "pytest", cases, *plain, option, test_name=file)

    assert_untouched(store_url)


def test_a_process_ends_though_a_live_page_of_the_dashboard_is_open(store_url):
    assert "event: page" in run_python(store_url, "-c", LEAVES_A_PAGE_OPEN)

"""A project whose tables are made by Django's own migrations."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from django.core.management import call_command

from tests.integrations.django.project import set_up, using, without_schedules


@pytest.fixture(autouse=True)
def _no_schedules_of_other_tests() -> Iterator[None]:
    set_up()
    from duly.integrations.django import schedule_registry  # noqa: PLC0415 - needs settings

    before, schedule_registry._entries = schedule_registry._entries, {}
    yield
    schedule_registry._entries = before


@pytest.fixture
def project(store_url: str) -> Iterator[str]:
    """Yield the address of a migrated project's database."""
    with using(default=store_url):
        call_command("migrate", "duly", verbosity=0)
        yield store_url


@pytest.fixture
def backend(project: str):
    """Yield the project's duly backend, without other tests' schedules."""
    from tests.integrations.django.api import task_backends  # noqa: PLC0415 - needs settings

    set_up()
    found = task_backends["default"]
    with without_schedules(found.app), closing(found.app):
        yield found
    found.app.runs_tasks = False


@pytest.fixture
def scheduler(project: str):
    """Yield the application that fires tasks for other backends, without other tests' schedules."""
    from duly.integrations.django.app import scheduler_app  # noqa: PLC0415 - needs settings
    from tests.integrations.django import other  # noqa: PLC0415 - as above

    other.waiting.clear()
    app = scheduler_app()
    with without_schedules(app), closing(app):
        yield app
    app.runs_tasks = False

"""Settings of the project. The environment names its database."""

import os
from typing import Any

from tests.integrations.django.project import backport, database_at

_TASKS = "django_tasks" if backport() else "django.tasks"

_database: dict[str, Any] = database_at(os.environ["USERS_URL"])
_test_name = os.environ.get("USERS_TEST_NAME")
DATABASES = {"default": _database | ({"TEST": {"NAME": _test_name}} if _test_name else {})}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    *backport(),
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "duly.integrations.django",
    "tests.integrations.django.users",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
PERIODIC_TASKS_AUTOSTART = True
ROOT_URLCONF = "tests.integrations.django.users.urls"
SECRET_KEY = "of tests"  # noqa: S105 - protects nothing
TASKS = {
    "default": {"BACKEND": "duly.integrations.django.DulyBackend", "QUEUES": []},
    "immediate": {"BACKEND": f"{_TASKS}.backends.immediate.ImmediateBackend"},
    "dummy": {"BACKEND": f"{_TASKS}.backends.dummy.DummyBackend"},
}
USE_TZ = True

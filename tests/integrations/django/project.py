"""A Django project in the process of the tests, on the database of the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
import psycopg
from asgiref.local import Local
from django.conf import settings
from django.db import ConnectionHandler, connections

ADMIN = [f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "messages")]


def set_up() -> None:
    """Configure Django once per process."""
    if settings.configured:
        return
    tasks = "django_tasks" if backport() else "django.tasks"
    settings.configure(
        DATABASES={},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=[
            *backport(),
            *ADMIN,
            "duly.integrations.django",
            "tests.integrations.django",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        ALLOWED_HOSTS=["testserver"],
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        ROOT_URLCONF="tests.integrations.django.urls",
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
        STATIC_URL="static/",
        SECRET_KEY="of tests",  # noqa: S106 - protects nothing
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        TASKS={
            "default": {"BACKEND": "duly.integrations.django.DulyBackend", "QUEUES": []},
            "other": {"BACKEND": "tests.integrations.django.other.OtherBackend", "QUEUES": []},
            "strict": {"BACKEND": "tests.integrations.django.other.OtherBackend"},
            "broken": {"BACKEND": "tests.integrations.django.other.BrokenBackend"},
            "immediate": {"BACKEND": f"{tasks}.backends.immediate.ImmediateBackend"},
        },
        USE_TZ=True,
    )
    django.setup()


def backport() -> list[str]:
    """Return the application of the backport where Django has no tasks."""
    return [] if django.VERSION >= (6,) else ["django_tasks"]


def database_at(url: str) -> dict[str, Any]:
    """Return an address in the form of Django's settings."""
    if url == ":memory:":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url}
    if url.startswith("sqlite"):
        name = url.removeprefix("sqlite:///")
        options = {"transaction_mode": "IMMEDIATE"}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}
    parts = psycopg.conninfo.conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "HOST": "host", "PORT": "port"}
    found: dict[str, Any] = {key: parts.get(name, "") for key, name in names.items()}
    return found | {"ENGINE": "django.db.backends.postgresql"}


@contextmanager
def using(**databases: str) -> Iterator[None]:
    """Let Django use these databases under these aliases."""
    set_up()
    found = {alias: database_at(url) for alias, url in databases.items()}
    handler = ConnectionHandler({"default": {}, **found})
    before = getattr(connections, "settings", {})
    _set(handler.settings)
    try:
        yield
    finally:
        for alias in databases:
            connection = connections[alias]
            connection.close()
            # Django keeps a database in memory open.
            if connection.connection is not None:
                connection.connection.close()
        _set(before)


@contextmanager
def without_schedules(app: Any) -> Iterator[None]:
    """Let code define schedules in an application during a block, and forget them afterwards."""
    defined = app.schedules._defined
    before = dict(defined)
    defined.clear()
    try:
        yield
    finally:
        defined.clear()
        defined.update(before)


def _set(databases: dict[str, Any]) -> None:
    connections.settings = databases
    # Every thread forgets its connections.
    connections._connections = Local(connections.thread_critical)

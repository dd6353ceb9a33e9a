"""Projects with several databases, routers among them, and drivers that duly cannot use."""

from contextlib import closing, contextmanager
from importlib import util

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connections, transaction
from django.test import override_settings
from django.urls import reverse

from duly.integrations.django import app as apps
from duly.integrations.django.backend import DulyBackend
from duly.integrations.django.checks import check_backend
from duly.integrations.django.project import databases
from tests.integrations.django import tasks
from tests.integrations.django.project import using
from tests.integrations.django.test_admin import UNMIGRATED, logged_in

pytestmark = pytest.mark.untouched


class OnlyElsewhere:
    """A router that keeps duly's tables out of the database of the models."""

    def allow_migrate(self, db, app_label, **_hints):
        return (db == "other") == (app_label == "duly")


@contextmanager
def routed(url, tmp_path):
    """A project whose models lie in one database and duly's tables in another."""
    tasks_of = settings.TASKS | {
        "default": {
            "BACKEND": "duly.integrations.django.DulyBackend",
            "QUEUES": [],
            "OPTIONS": {"database": "other"},
        },
    }
    router = f"{__name__}.OnlyElsewhere"
    with (
        using(default=f"sqlite:///{tmp_path / 'models.db'}", other=url),
        override_settings(DATABASE_ROUTERS=[router], TASKS=tasks_of, DULY_DATABASE="other"),
        override_settings(MIGRATION_MODULES=UNMIGRATED),
    ):
        known = dict(apps._apps)
        apps._apps.clear()
        for name in ("default", "other"):
            call_command("migrate", database=name, run_syncdb=True, verbosity=0)
        backend = DulyBackend("default", tasks_of["default"])
        try:
            with closing(backend.app):
                yield backend
        finally:
            apps._apps.clear()
            apps._apps.update(known)


def tables(alias: str) -> set[str]:
    connection = connections[alias]
    with connection.cursor() as cursor:
        return set(connection.introspection.table_names(cursor))


def test_a_router_says_where_the_tables_are(store_url, tmp_path):
    with routed(store_url, tmp_path):
        assert not any(name.startswith("duly_") for name in tables("default"))
        assert {"duly_runs", "duly_schedules"} <= tables("other")
        assert "auth_user" in tables("default")
        assert "auth_user" not in tables("other")
        assert databases() == ["other"]


def test_tasks_are_a_part_of_the_transactions_of_their_own_database(store_url, tmp_path):
    with routed(store_url, tmp_path) as backend:
        with transaction.atomic(using="other"):
            backend.enqueue(tasks.add, [1], {})
            transaction.set_rollback(True, using="other")
        with transaction.atomic(using="default"):
            kept = backend.enqueue(tasks.add, [2], {})
            transaction.set_rollback(True, using="default")
        assert [run.id for run in backend.app.runs.list()] == [kept.id]
        backend.app.worker().drain(timeout=20)
        assert backend.get_result(kept.id).return_value == 3


def test_the_admin_looks_where_the_runs_are(store_url, tmp_path):
    with routed(store_url, tmp_path) as backend:
        result = backend.enqueue(tasks.divide, [1, 0], {})
        client = logged_in("view_deadletter", "change_deadletter")
        backend.app.worker().drain(timeout=20)
        listed = client.get(reverse("admin:duly_deadletter_changelist")).content.decode()
        assert result.id in listed
        answer = client.post(
            reverse("admin:duly_deadletter_changelist"),
            {"action": "retry", "_selected_action": [result.id]},
            follow=True,
        )
        assert "1 queued again" in answer.content.decode()
        assert backend.app.runs.get(result.id).state == "queued"


@pytest.mark.stores("postgres")
def test_what_has_only_psycopg2_is_told_the_remedy(store_url, monkeypatch):
    found = util.find_spec
    monkeypatch.setattr(
        util, "find_spec", lambda name, *rest: None if name == "psycopg" else found(name, *rest)
    )
    with using(default=store_url):
        (message,) = check_backend(DulyBackend("checked", {}))
    assert message.id == "duly.E004"
    assert "psycopg[binary]" in message.hint

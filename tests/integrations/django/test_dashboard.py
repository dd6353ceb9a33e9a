"""The dashboard among the pages of a project: for its staff, over WSGI and ASGI alike."""

import asyncio
import re
import threading
from importlib import reload
from types import SimpleNamespace

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.test import AsyncClient, Client, override_settings
from django.urls import clear_url_caches

from duly.dashboard.bulk_executor import BulkActionExecutor
from duly.integrations.django.dashboard import OPERATORS, VIEWERS
from tests.integrations.django import tasks
from tests.integrations.django.test_admin import UNMIGRATED
from tests.servers.processes import wait_until

SOON = 20.0
STREAM = {"accept": "text/event-stream"}


@pytest.fixture
def backend(backend):
    """With the tables of Django's own, and a dashboard that has answered nobody."""
    with override_settings(MIGRATION_MODULES=UNMIGRATED):
        call_command("migrate", run_syncdb=True, verbosity=0)
    from tests.integrations.django import urls  # noqa: PLC0415 - needs settings

    reload(urls)
    clear_url_caches()
    yield backend
    if view().app is not None:
        view().app.close()


def view():
    """Return what answers for the dashboard."""
    from tests.integrations.django import urls  # noqa: PLC0415 - as above

    return urls.urlpatterns[-1].url_patterns[0].callback


def in_a_loop(asking):
    """Wait for an answer, and leave no connection behind on the thread that made it."""

    async def ask():
        try:
            return await asking
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(ask())


class OverAsgi:
    """Asks as `Client` does, of Django's handler for ASGI."""

    def __init__(self) -> None:
        self._client = AsyncClient()
        self.force_login = self._client.force_login

    def get(self, path):
        return in_a_loop(self._client.get(path))

    def post(self, path, data):
        return in_a_loop(self._client.post(path, data))

    @property
    def cookies(self):
        return self._client.cookies

    def first_part(self, path):
        async def ask():
            answer = await self._client.get(path, headers=STREAM)
            parts = aiter(answer)
            try:
                return await asyncio.wait_for(anext(parts), SOON)
            finally:
                await parts.aclose()

        return in_a_loop(ask())


class OverWsgi(Client):
    """Asks of Django's handler for WSGI."""

    def first_part(self, path):
        answer = self.get(path, headers=STREAM)
        try:
            return next(iter(answer))
        finally:
            answer.close()


both = pytest.mark.parametrize("kind", [OverWsgi, OverAsgi], ids=["wsgi", "asgi"])


def known_as(kind, name, *, permissions=(), **rights):
    from django.contrib.auth.models import Permission, User  # noqa: PLC0415 - needs settings

    user, _ = User.objects.get_or_create(username=name, defaults=rights)
    codenames = [permission.partition(".")[2] for permission in permissions]
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = kind()
    client.force_login(user)
    return client


def begin_to_drop_a_test_database():
    """Tell all what Django tells when it connects to no database to make or drop one."""
    connection_created.send(sender=None, connection=SimpleNamespace(alias=NO_DB_ALIAS))


def without_times(page: str) -> str:
    page = re.sub(r"<time[^>]*>[^<]*</time>", "<time>", page)
    return re.sub(r'name="csrf" value="[0-9a-f]+"', "csrf", page)


@both
def test_staff_may_look_and_others_may_not(backend, kind):
    run = tasks.add.enqueue(41)
    staff = known_as(kind, "ada", is_staff=True, permissions=VIEWERS)

    seen = staff.get(f"/duly/runs/{run.id}")

    assert seen.status_code == 200
    assert run.id in seen.content.decode()
    assert "41" in seen.content.decode()
    assert staff.get("/duly/").status_code == 200
    assert staff.get("/duly/static/dashboard.css")["Content-Type"].startswith("text/css")
    anybody = kind().get("/duly/runs?state=failed")
    assert anybody.status_code == 302
    assert anybody["Location"] == "/admin/login/?next=/duly/runs%3Fstate%3Dfailed"
    customer = known_as(kind, "bob").get("/duly/runs")
    assert customer.status_code == 403
    assert run.id not in customer.content.decode()
    gone = known_as(kind, "eve", is_staff=True, is_active=False)
    assert gone.get("/duly/runs").status_code == 302


@both
@pytest.mark.parametrize("missing", range(3))
def test_staff_without_permissions_see_nothing(backend, kind, missing):
    run = tasks.add.enqueue(41)
    some = [name for number, name in enumerate(VIEWERS) if number != missing]
    for name, permissions in (("ada", ()), ("bob", some)):
        staff = known_as(kind, name, is_staff=True, permissions=permissions)
        for path in ("", "runs", f"runs/{run.id}", "api/runs", "dead/export", "metrics", "audit"):
            seen = staff.get(f"/duly/{path}")
            assert seen.status_code == 403, path
            assert run.id not in seen.content.decode()


@both
def test_to_act_takes_permissions_and_the_name_is_on_record(backend, kind):
    run = backend.app.runs.get(tasks.add.enqueue(41).id)
    address = f"/duly/runs/{run.id}"
    operator = known_as(kind, "ada", is_staff=True, permissions=OPERATORS)
    viewer = known_as(kind, "bob", is_staff=True, permissions=(*VIEWERS, *OPERATORS[:2]))

    for client, status, state in ((viewer, 403, "queued"), (operator, 303, "cancelled")):
        client.get(address)
        token = {"csrf": client.cookies["duly_csrf"].value}
        assert client.post(f"{address}/cancel", {"csrf": "wrong"}).status_code == 403
        assert client.post(f"{address}/cancel", token).status_code == status
        assert run.refresh().state == state

    assert "ada" in operator.get("/duly/audit").content.decode()


@both
def test_it_acts_where_requests_are_transactions(backend, kind):
    run = backend.app.runs.get(tasks.add.enqueue(41).id)
    operator = known_as(kind, "ada", is_staff=True, permissions=OPERATORS)
    operator.get(f"/duly/runs/{run.id}")
    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    connections["default"].settings_dict["ATOMIC_REQUESTS"] = True

    answer = operator.post(
        f"/duly/runs/{run.id}/cancel", {"csrf": operator.cookies["duly_csrf"].value}
    )

    assert answer.status_code == 303
    assert run.refresh().state == "cancelled"


@pytest.mark.stores("sqlite-wal")
def test_a_project_without_users_is_told_what_it_lacks(backend):
    with (
        override_settings(MIDDLEWARE=[]),
        pytest.raises(ImproperlyConfigured, match="AuthenticationMiddleware"),
    ):
        OverWsgi().get("/duly/")


def test_pages_are_the_same_over_wsgi_and_asgi(backend):
    tasks.add.enqueue(41)
    clients = [
        known_as(kind, "ada", is_staff=True, permissions=VIEWERS) for kind in (OverWsgi, OverAsgi)
    ]
    for path in ("", "runs", "dead", "schedules", "queues", "workers", "tasks", "audit", "nosuch"):
        answers = [client.get(f"/duly/{path}") for client in clients]
        pages = {without_times(answer.content.decode()) for answer in answers}
        assert len(pages) == 1, path
        assert {answer.status_code for answer in answers} == {404 if path == "nosuch" else 200}


@both
def test_a_page_is_kept_up_to_date_and_its_stream_ends_with_the_connection(backend, kind):
    run = tasks.add.enqueue(41)
    client = known_as(kind, "ada", is_staff=True, permissions=VIEWERS)
    for _ in range(2):
        first = client.first_part("/duly/runs").decode()
        assert first.startswith("event: page")
        assert run.id in first
    wait_until(lambda: not view().exchanges, seconds=SOON, what="both streams have ended")


def test_the_dashboard_does_not_close_the_connection_of_djangos_server(backend):
    staff = known_as(OverWsgi, "ada", is_staff=True, permissions=VIEWERS)

    answer = staff.get("/duly/runs", headers={"Transfer-Encoding": "chunked"})

    assert answer.status_code == 411
    assert "Connection" not in answer, "WSGI servers refuse this header"


def test_live_pages_end_before_a_test_database_is_dropped_and_pages_work_again(backend):
    run = tasks.add.enqueue(41)
    client = known_as(OverWsgi, "ada", is_staff=True, permissions=VIEWERS)
    parts = iter(client.get("/duly/runs", headers=STREAM))
    next(parts)

    begin_to_drop_a_test_database()

    assert (view().exchanges, view().app.is_open) == (set(), False)
    assert b"".join(parts) == b""
    assert run.id in client.get("/duly/runs").content.decode()
    assert run.id in client.first_part("/duly/runs").decode()


def test_acts_on_many_runs_are_over_before_a_test_database_is_dropped(backend, monkeypatch):
    run = backend.app.runs.get(tasks.add.enqueue(41).id)
    client = known_as(OverWsgi, "ada", is_staff=True, permissions=OPERATORS)
    client.get("/duly/runs")
    may_act, advance = threading.Event(), BulkActionExecutor._advance

    def late(*act):
        assert may_act.wait(SOON)
        return advance(*act)

    monkeypatch.setattr(BulkActionExecutor, "_advance", late)
    form = {"csrf": client.cookies["duly_csrf"].value, "verb": "cancel", "id": run.id}
    assert client.post("/duly/dead/act", form).status_code == 303
    states = []
    monkeypatch.setattr(view().app, "close", lambda: states.append(run.refresh().state))

    may_act.set()
    begin_to_drop_a_test_database()

    assert states == ["cancelled"]

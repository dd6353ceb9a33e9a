"""The dashboard in a Django project, in a real browser, for staff only."""

from contextlib import closing

import pytest

from duly import Duly
from tests.dashboard.visit import Visit
from tests.integrations.django.shop import SOON, Shop
from tests.servers.processes import free_port, wait_until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.process,
    pytest.mark.untouched,
    pytest.mark.timeout(300),
    pytest.mark.stores("sqlite-wal"),  # The server of the pages does not depend on the store.
]

PASSWORD = "Vz3kQ9mX-7bRtY2w"  # noqa: S105 - of these tests alone
USERS = f"""
from django.contrib.auth.models import User
from django.test import Client
User.objects.create_superuser("ada", password={PASSWORD!r})
client = Client()
client.force_login(User.objects.create_user("bob", password={PASSWORD!r}))
print(client.cookies["sessionid"].value)
"""
SERVERS = {
    "wsgi": ("gunicorn", "--threads", "8", "--bind", "127.0.0.1:{port}", "shop.wsgi"),
    "asgi": ("uvicorn", "--port", "{port}", "--lifespan", "off", "shop.asgi:application"),
}
READY = {"wsgi": "Booting worker", "asgi": "Uvicorn running"}


def sign_in(visit: Visit, name: str) -> None:
    visit.page.get_by_label("Username").fill(name)
    visit.page.get_by_label("Password").fill(PASSWORD)
    visit.press("Log in")


@pytest.mark.parametrize("kind", SERVERS)
def test_staff_can_sign_in_and_act_and_other_users_are_refused(kind, store_url, browser, tmp_path):
    shop = Shop(store_url, tmp_path / "shop.log")
    shop.manage("migrate", "--verbosity", "0")
    session = shop.manage("shell", "--command", USERS).splitlines()[-1]
    port = free_port()
    command = ["-m", *(part.format(port=port) for part in SERVERS[kind])]
    address = f"http://127.0.0.1:{port}"
    with closing(Duly(store_url)) as seen, shop.running(*command):
        wait_until(
            lambda: READY[kind] in shop.log.read_text(), seconds=SOON, what="the shop is served"
        )
        with Visit(browser, address) as visit:
            visit.go("/duly/")
            sign_in(visit, "bob")
            assert "for a staff account" in visit.page.inner_text("body")
            sign_in(visit, "ada")
            visit.wrong.clear()  # This project does not serve the stylesheet of the admin.
            assert visit.page.url == f"{address}/duly/"
            visit.page.get_by_role("heading", name="Overview").wait_for()
            page = visit.go("/duly/runs")
            shop.manage("place_orders", "1")
            (run,) = seen.runs.list()
            page.wait_for_selector(f"#r{run.id}")  # The live stream of the page brings this change.
            page = visit.go(f"/duly/runs/{run.id}")
            visit.confirm("Cancel", "Cancel the run")
            assert (run.refresh().state, visit.wrong) == ("cancelled", [])
            assert visit.elsewhere == []
        (act,) = seen.store.list_audit_entries(None, 5)
        assert act.actor == "ada"

        with Visit(browser, address) as visit:
            cookie = {"name": "sessionid", "value": session, "url": address}
            visit.context.add_cookies([cookie])
            assert visit.page.goto(f"{address}/duly/runs").status == 403
            assert visit.runs() == []

"""Pages in a real browser block hostile scripts, other sites, secrets and actions of readers."""

from contextlib import suppress
from urllib.parse import quote

import pytest
from playwright.sync_api import Error as Interrupted
from starlette.responses import HTMLResponse

from duly import current, step
from duly.clock import new_secret
from duly.dashboard import BasicAuth, TokenAuth, dashboard
from duly.store.ops.upkeep import RegisterWorker
from tests.dashboard.conftest import opened
from tests.dashboard.hostile import MARK, PAYLOADS
from tests.dashboard.test_pages import PAGES
from tests.dashboard.visit import Visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

ALIEN = f"""() => {{
    const kinds = "img, iframe, object, embed, video, audio, base, meta, link, style, template";
    return [...document.querySelectorAll("*")].filter((element) =>
        element.hasAttribute("{MARK}")
        || [...element.attributes].some(({{name}}) => name.startsWith("on"))
        || (element.tagName === "SCRIPT" && !element.src.startsWith(location.origin))
        || (element.matches("a[href]") && !element.href.startsWith(location.origin))
        || element.matches(`main :is(${{kinds}})`)
    ).map((element) => element.outerHTML.slice(0, 200));
}}"""
"""Elements that come from no template of the dashboard."""
ALL = "".join(PAYLOADS)


def as_name(text):
    """Return a hostile text as a valid name. Names have no blanks and no dash in front."""
    return "/".join(text.replace(",", "").split()).lstrip("-")


def fill_with_hostile_text(app):
    """Put all hostile texts into every text field. Return the runs that have most of them."""

    def explode(*texts):
        raise ValueError("".join(texts))

    for number, text in enumerate(PAYLOADS):
        name = as_name(text)
        task = app.task(name=f"{name}:{number}", queue=name, retries=0)(explode)
        task.using(key=text, tags={text[:60]: text}).enqueue(text)
        app.schedules.add(name, task, every=900 + number, actor=text)
        app.store.do(RegisterWorker(f"worker {text}", text, 1, 15.0, "[]", f'["{number}"]'))
    app.queues.pause(as_name(PAYLOADS[0]), actor=ALL[:200], reason=ALL[:900])

    @app.task(name="shop:tell")
    def tell(texts):
        step(texts[0], lambda: texts)
        current().progress(0.5, ALL[:400])
        current().log.info(ALL)
        return {text: text for text in texts}

    told = tell.enqueue(list(PAYLOADS))
    failed = app.task(name="shop:fail", retries=0)(explode).enqueue(*PAYLOADS)
    app.worker().drain()
    app.runs.cancel(failed.id, actor=ALL[:200], reason=ALL[:900])
    return told, failed


def test_hostile_text_from_every_source_is_shown_as_text(shop, serve, browser):
    assert len(PAYLOADS) >= 60
    told, failed = fill_with_hostile_text(shop.app)
    fingerprint = shop.app.runs.get(failed.id).record.fingerprint
    name = quote(as_name(PAYLOADS[0]), safe="")
    asked = quote(ALL)
    paths = [
        *PAGES,
        *(f"/runs/{run.id}" for run in (told, failed)),
        f"/runs/{told.id}/edit",
        f"/dead/group?task=shop:fail&fingerprint={fingerprint}",
        f"/schedules/{name}",
        *(
            f"/runs?q={quote(ALL[at : at + 1_000])}&before={asked}"
            for at in range(0, len(ALL), 900)
        ),
        f"/?window={asked}",
        f"/dead?window={asked}",
        f"/dead/group?task={asked}&fingerprint={asked}&before={asked}",
        f"/audit?subject={asked}&before={asked}",
        f"/schedules/{asked}",
        f"/{asked}",
    ]
    with Visit(browser, serve(opened(shop.app, write=True))) as visit:
        page = visit.page
        page.on("dialog", lambda dialog: (visit.wrong.append(dialog.message), dialog.dismiss()))
        for path in paths:
            visit.go(path)
            assert page.evaluate(ALIEN) == [], path[:80]
        visit.go("/runs")
        new = shop.send_receipt.using(tags={"t": ALL[:255]}).enqueue(1, ALL)
        page.wait_for_selector(f"#r{new.id}")  # The live stream sends the run as part of a page.
        assert page.evaluate(ALIEN) == []
        assert PAYLOADS[0] in page.locator(f"#r{new.id}").inner_text()
        assert visit.wrong == visit.elsewhere == []


ATTACKS = """<!doctype html><title>prizes</title>
<form id="form" method="post" action="{to}/queues/mail/pause"><input name="csrf" value="0"></form>
<img src="{to}/queues/mail/pause"><iframe src="{to}/queues"></iframe>"""
SEND = """to => fetch(`${to}/queues/mail/pause`, {
    method: "POST", mode: "no-cors", credentials: "include",
    headers: {"Content-Type": "text/plain"}, body: '{"csrf": "0"}',
}).then(() => "sent", () => "refused")"""
READ = "to => fetch(`${to}/runs`, {credentials: 'include'}).then(() => 'read', () => 'refused')"


def test_another_site_can_neither_act_nor_read_nor_frame_a_page(busy, address, serve, browser):
    async def site(scope, receive, send):
        await HTMLResponse(ATTACKS.format(to=address))(scope, receive, send)

    port = serve(site).rpartition(":")[2]
    before = busy.app.store.list_audit_entries(None, 100)
    with Visit(browser, address) as visit:
        page = visit.go("/queues")  # This visit gives the browser the cookies of the dashboard.
        # Another port is another origin but the same site, so the browser sends the cookies.
        for host in ("prizes.test", "127.0.0.1"):
            page.goto(f"http://{host}:{port}/")
            framed = page.frames[1]
            assert not framed.url.startswith(address), framed.url
            page.evaluate(SEND, address)
            assert page.evaluate(READ, address) == "refused"
            with suppress(Interrupted), page.expect_navigation() as moved:
                page.evaluate("() => document.forms[0].submit()")
            assert moved.value.status == 403
            assert "came from another site" in page.inner_text("main")
        assert busy.app.store.list_audit_entries(None, 100) == before

        page.goto(f"{address.replace('127.0.0.1', 'evil.test')}/runs")
        assert "does not answer requests for that host name" in page.inner_text("body")
    closed = serve(dashboard(busy.app))
    with Visit(browser, closed, extra_http_headers={"X-Forwarded-For": "10.0.0.9"}) as visit:
        page = visit.go("/")
        assert "answers only requests from its own machine" in page.inner_text("main")


def test_one_link_signs_a_browser_in_and_leaves_no_token_in_its_address(busy, serve, browser):
    token = new_secret()
    address = serve(dashboard(busy.app, auth=TokenAuth(token), hosts={"127.0.0.1"}))
    asked = []
    with Visit(browser, address) as visit:
        visit.page.on("request", lambda request: asked.append(request.url))
        for _ in range(2):  # The second time, the browser is at the login page already.
            visit.go("/login")
            visit.page.goto(f"{address}/login#{token}")
            visit.page.wait_for_url(f"{address}/")
            visit.page.get_by_role("button", name="Sign out").first.wait_for()
            visit.context.clear_cookies()
        visit.page.go_back()
        assert token not in visit.page.url
        assert visit.wrong == visit.elsewhere == []
    assert not any(token in url.partition("#")[0] for url in asked)


ACTS = "form[method=post], form[action$='/ask']"
PAUSE = """csrf => fetch("/queues/mail/pause", {
    method: "POST", body: new URLSearchParams({csrf}),
}).then((answer) => answer.status)"""


def test_viewers_with_read_access_see_no_actions_and_can_perform_none(busy, serve, browser):
    auth = BasicAuth({"ann": "secret-of-ann"}, viewers={"eve": "secret-of-eve"})
    address = serve(dashboard(busy.app, write=True, auth=auth))
    (run,) = busy.app.runs.list(task="shop.orders:fulfil")
    group = busy.app.dead.groups()[0]
    places = (
        "/dead",
        f"/dead/group?task={group.task}&fingerprint={group.fingerprint}",
        "/runs",
        f"/runs/{run.id}",
        "/schedules/nightly-report",
        "/queues",
    )
    forms = {}
    for name in ("eve", "ann"):
        who = {"username": name, "password": f"secret-of-{name}"}
        with Visit(browser, address, http_credentials=who) as visit:
            forms[name] = [visit.go(path).locator(ACTS).count() for path in places]
            csrf = next(each["value"] for each in visit.context.cookies() if "csrf" in each["name"])
            assert visit.page.evaluate(PAUSE, csrf) == (403 if name == "eve" else 200)
            assert visit.page.get_by_text("read-only").count() == (name == "eve")
            assert visit.wrong == []
    assert forms["eve"] == [0] * len(places)
    assert all(forms["ann"][1:])
    (act,) = busy.app.store.list_audit_entries("queue mail", 5)
    assert act.actor == "ann"


def test_redacted_values_reach_no_browser(busy, serve, browser):
    secret = "4111-2222-3333"  # noqa: S105 - no real secret
    runs = [busy.send_receipt.enqueue(1, "a@b.c", card=secret) for _ in range(2)]
    busy.app.worker().drain()
    with Visit(browser, serve(opened(busy.app, write=True))) as visit:
        for path in (*PAGES, *(f"/runs/{run.id}" for run in runs), f"/runs/{runs[0].id}/edit"):
            assert secret not in visit.go(path).content(), path
        visit.go(f"/runs?q=args.card:{secret}")
        assert visit.runs() == [], "a filter cannot find the value either"
        visit.go(f"/runs/{runs[0].id}")
        assert "***" in visit.section("Arguments").inner_text()
        assert "a@b.c" in visit.section("Arguments").inner_text()
    with Visit(browser, serve(opened(busy.app, show_arguments=False))) as visit:
        assert "a@b.c" not in visit.go("/runs").content()
        assert "a@b.c" not in visit.go(f"/runs/{runs[0].id}").content()
        assert "does not show arguments" in visit.section("Arguments").inner_text()

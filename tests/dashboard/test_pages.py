"""Every page shows its data, with or without JavaScript, on both databases."""

import re
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import duly
from duly import Retry, current
from duly.core.cron import Cron
from duly.core.instants import microseconds_of
from duly.core.schedule import Rules, instants
from duly.dashboard.pages.schedules import week
from duly.dashboard.server import below
from duly.store.ops.operators import RecordAuditEntry
from duly.store.ops.recovery import Recover
from duly.store.ops.upkeep import RegisterWorker
from tests.dashboard.conftest import client_of

PAGES = ("/", "/runs", "/dead", "/schedules", "/queues", "/workers", "/tasks", "/audit")


def test_empty_pages_explain_the_next_step(client):
    for path in PAGES:
        page = client.get(path)

        assert page.status_code == 200, path
        assert path == "/tasks" or 'class="nothing"' in page.text, path


def test_pages_show_a_days_work(busy, client):
    busy.app.store.do(RecordAuditEntry("ann", "deploy", "deployment", "v1.4"))
    expected = {
        "/": ("v1.4", "is paused: the bank is down", "shop.orders:charge"),
        "/?window=1h": ("the last 1h",),
        "/runs": ("order_id=7", "tenant=acme", "1152921504606846977", "ConnectionError"),
        "/dead": (">12<", "the bank does not answer", "no label printer is online"),
        "/schedules": ("At 03:00 every day", "Europe/Berlin", "Every 15 minutes"),
        "/schedules/nightly-report": ("+0100", "The coming week", "run schedule"),
        "/queues": ("reports", "paused", "mail"),
        "/workers": ("stopped",),
        "/tasks": ("shop.mail", "send_receipt"),
        "/audit": ("ann", "pause", "the disk is full"),
    }
    for path, words in expected.items():
        page = client.get(path).text

        for word in words:
            assert word in page, f"{word} on {path}"
    assert 'id="ended">0<' not in client.get("/").text, "a finished run is counted at once"


def test_workers_are_shown_with_the_version_they_run(shop, client):
    old = RegisterWorker("old", "host", 1, 15.0, "[]", "[]")
    shop.app.store.do(old)
    before = client.get("/workers").text
    with shop.app.worker(version="1.4.2-rc1"):
        page = client.get("/workers").text
    listed = client.get("/api/workers").json()["workers"]

    assert "not told" in before
    assert "1.4.2-rc1" in page
    assert f"duly {duly.__version__}, Python 3." in page
    assert [worker["version"] for worker in listed] == ["1.4.2-rc1", None]


def test_the_page_of_a_run_shows_all_its_details(busy, client):
    (run,) = busy.app.runs.list(task="shop.orders:fulfil")

    page = client.get(f"/runs/{run.id}").text

    for word in ("reserve-stock", "let-them-think", "gather", "Traceback", "order_id", "4711"):
        assert word in page, word
    assert page.count("shop.orders:</span><b>pack") == 2, "the run shows its children"
    child = busy.app.runs.list(task="shop.orders:pack")[0]
    assert f"/runs/{run.id}" in client.get(f"/runs/{child.id}").text, "a child shows its parent"


def test_redacted_values_reach_no_page(busy, client):
    (run,) = busy.app.runs.list(tag="tenant=acme")
    secret = busy.send_receipt.enqueue(1, "a@b.c", card="4111-2222")

    pages = [client.get(path).text for path in ("/runs", f"/runs/{run.id}", f"/runs/{secret.id}")]

    assert not any("4111-2222" in page for page in pages)
    assert "***" in pages[2]


def test_arguments_can_be_hidden_altogether(busy):
    (run,) = busy.app.runs.list(tag="tenant=acme")
    client = client_of(busy.app, show_arguments=False)

    assert "a@b.c" not in client.get("/runs").text
    assert "does not show arguments" in client.get(f"/runs/{run.id}").text


FOUND = {
    "args.order_id:4711": 1,
    "args.count:1152921504606846977": 1,
    "key:order-7": 1,
    "key:nobody": 0,
    "tag:tenant=acme": 1,
    "state:failed": 13,
    "state:failed task:shop.orders:fulfil": 1,
    "error:printer": 1,
    "queue:mail state:queued": 1,
    "task:shop.orders:pack since:1h": 2,
}


def test_runs_are_found_by_filters_in_the_address(busy, client):
    found = {text: client.get("/runs", params={"q": text}).text.count("data-row") for text in FOUND}

    assert found == FOUND


def test_the_state_tabs_keep_the_rest_of_the_filter(busy, client):
    page = client.get("/runs", params={"q": "state:failed task:shop.orders:charge since:24h"}).text

    others = "task%3Ashop.orders%3Acharge+since%3A24h"
    assert f'/runs?q=state%3Aqueued+{others}"' in page
    assert f'/runs?q={others}"' in page, "the tab of all states"
    assert f'q=state%3Afailed+{others}" aria-current="true"' in page


def test_the_error_in_an_invalid_filter_is_explained(client):
    page = client.get("/runs", params={"q": "colour:red state:odd since:ever tag:x word"}).text

    for hint in (
        "no filter colour:",
        "no state odd",
        "15m, 24h or 7d",
        "tag:name=value",
        "word is",
    ):
        assert hint in page


TYPOS = {
    "state:faild": "did you mean state:failed?",
    "state:failed,interupted": "did you mean state:interrupted?",
    "stat:failed": "did you mean state:failed?",
    "since:ever": "15m, 24h or 7d",
}


@pytest.mark.parametrize(("text", "words"), TYPOS.items())
def test_a_filter_with_a_typo_lists_no_run_and_suggests_a_correction(busy, client, text, words):
    page = client.get("/runs", params={"q": text})
    api = client.get("/api/runs", params={"q": text})

    assert (page.status_code, page.text.count("data-row")) == (422, 0)
    assert words in page.text.partition('role="alert"')[2]
    assert "No matching run" not in page.text, "an empty list would look like a result"
    assert (api.status_code, words in api.json()["detail"]) == (422, True)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("task:shop.orders:chrage", "task:shop.orders:charge"),
        ("queue:mial", "queue:mail"),
        ("task:charge", "task:shop.orders:charge"),
    ],
)
def test_a_filter_by_an_unknown_name_suggests_a_known_name(busy, client, text, meant):
    page = client.get("/runs", params={"q": text}).text

    assert "No matching run" in page
    assert "did you mean" in page
    assert f">{meant}</a>" in page


def test_a_filter_by_a_known_name_suggests_no_other_name(busy, client):
    page = client.get("/runs", params={"q": "task:shop.orders:charge state:running"}).text

    assert "No matching run" in page
    assert "did you mean" not in page


def test_a_runs_id_leads_to_the_run(busy, client):
    (run,) = busy.app.runs.list(task="shop.orders:fulfil")

    page = client.get("/runs", params={"q": run.id}, follow_redirects=False)

    assert page.headers["location"] == f"/runs/{run.id}"


def test_a_list_continues_after_the_last_row(shop, client):
    shop.app.enqueue_many(shop.nothing.call(number) for number in range(60))

    first = client.get("/runs").text
    address = first.partition('" rel="next"')[0].rpartition('href="')[2]
    second = client.get(f"/runs{address}").text

    assert (first.count("data-row"), second.count("data-row")) == (50, 10)
    assert 'rel="next"' not in second


def test_schedules_are_listed_in_pages(shop, client):
    for number in range(51):
        shop.app.schedules.add(f"s{number:02}", shop.nothing, every=900)

    first = client.get("/schedules").text
    address = first.partition('" rel="next"')[0].rpartition('href="')[2]
    second = client.get(f"/schedules{address}").text

    assert (first.count("data-row"), second.count("data-row")) == (50, 1)
    assert 'rel="next"' not in second


@pytest.mark.parametrize("stripped", [True, False])
@pytest.mark.stores("sqlite")
def test_the_dashboard_works_with_a_proxy_that_strips_or_keeps_its_path(busy, stripped):
    client = TestClient(below(client_of(busy.app).app, "/ops"), base_url="http://localhost")
    before = "" if stripped else "/ops"

    for path in ("/", "/runs", "/static/dashboard.css", "/api/queues"):
        assert client.get(before + path).status_code == 200, path
    page = client.get(f"{before}/runs")
    assert 'href="/ops/static/dashboard.css?v=' in page.text
    assert "Path=/ops" in client.get(f"{before}/").headers.get("set-cookie", "Path=/ops")
    assert client.get("/ops").status_code == 200


@pytest.mark.parametrize(
    "path", ["/runs/nothing", "/schedules/none", "/bulk/x", "/bulk/%00", "/nowhere"]
)
def test_an_unknown_address_shows_a_not_found_page(client, path):
    page = client.get(path)

    assert page.status_code == 404
    assert "Not found" in page.text


def test_the_dashboard_works_below_a_path(busy):
    pages = client_of(busy.app).app
    client = TestClient(Starlette(routes=[Mount("/ops/duly", pages)]), base_url="http://localhost")

    page = client.get("/ops/duly/runs").text

    assert 'href="/ops/duly/static/dashboard.css?v=' in page
    assert client.get("/ops/duly/static/dashboard.css").status_code == 200
    assert 'href="/runs' not in page


def test_a_worker_that_vanished_is_shown_as_lost(shop, client):
    shop.app.store.do(RegisterWorker("w" * 12, "host-7", 1, 15.0, "[]", "[]"))

    shop.app.store.do(Recover("w" * 12, judge=lambda _run: None))

    page = client.get("/workers").text
    assert "host-7" in page
    assert "lost" in page


@pytest.mark.parametrize(
    ("zone", "day", "change"),
    [
        ("America/New_York", "2026-11-01", "back by 60 min"),
        ("Europe/London", "2026-03-29", "forward by 60 min"),
        ("Australia/Lord_Howe", "2026-04-05", "back by 30 min"),
    ],
)
def test_the_calendar_marks_the_days_on_which_clocks_change(zone, day, change):
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)) - timedelta(days=2)
    due = partial(instants, Cron("30 1 * * *", zone), Rules())

    days = week(due, ZoneInfo(zone), microseconds_of(begin))

    assert [each.change for each in days] == ["", "", f"clocks go {change}", "", "", "", ""]
    assert [len(each.fires) for each in days] == [1] * 7, "each day has exactly one mark"


@pytest.mark.parametrize(
    ("every", "more"), [("* * * * *", "1,428"), ("*/30 * * * *", "36"), ("0 3 * * *", "")]
)
def test_every_day_of_the_week_shows_that_a_busy_schedule_fires(shop, client, every, more):
    shop.app.schedules.add("busy", shop.nothing, cron=every, tz="Europe/Berlin")

    page = client.get("/schedules/busy").text
    days = page.partition('class="week"')[2].partition("</section>")[0].split('class="day"')[1:]

    assert len(days) == 7
    for day in days[1:]:
        assert "<li" in day
        assert (f"and {more} more" in day) == bool(more)
    assert page.count("times in Europe/Berlin") == 1


def test_values_with_secret_names_reach_no_page(shop, client):
    @shop.app.task(name="shop.login:open")
    def open_session(
        user: str, password: str = "", *, options: dict[str, str] | None = None, max_tokens: int = 0
    ) -> None: ...

    run = open_session.enqueue(
        "ann", "hunter2-a", options={"api_key": "hunter2-b"}, max_tokens=4096
    )

    pages = [client.get(path).text for path in ("/runs", f"/runs/{run.id}", f"/runs/{run.id}/edit")]

    assert not any("hunter2" in page for page in pages)
    assert all("4096" in page for page in pages[:2]), "a word count is no secret"
    assert client.get("/runs", params={"q": "args.password:hunter2-a"}).text.count("data-row") == 0


def test_tasks_can_be_sorted_by_load_and_failures(busy, client):
    def first(order):
        page = client.get("/tasks", params={"order": order}).text
        return page.partition("data-row")[2].partition("</b>")[0].rpartition("<b>")[2]

    assert first("busiest") == "send_receipt"
    assert first("failing most") == "charge"
    assert first("nonsense") == "send_receipt"
    assert client.get("/tasks?order=slowest").status_code == 200


def test_a_run_shows_its_past_states(busy, client):
    run = busy.app.dead.list(task="shop.orders:charge")[0]
    run.retry(actor="ann")

    page = client.get(f"/runs/{run.id}").text
    states = page.partition('class="moments"')[2].partition("</ol>")[0]

    found = re.findall(r"badge s-(\w+)", states)
    assert found == ["queued", "running", "failed", "queued"]
    assert "retry by ann" in states


def test_the_step_that_failed_a_run_is_drawn(busy, client):
    (run,) = busy.app.runs.list(task="shop.orders:fulfil")

    page = client.get(f"/runs/{run.id}").text

    drawn = page.partition('class="waterfall"')[2].partition("</svg>")[0]
    assert re.search(r'class="w-step w-bad">.*print-label', drawn)
    assert "attempt 1, part 2" in drawn
    assert drawn.count("w-part") >= 1, "waiting steps differ from finished steps"


def test_a_search_continues_over_several_batches_and_pages(shop, client, monkeypatch):
    monkeypatch.setattr("duly.dashboard.application_view.LOOK_RUNS", 3)
    monkeypatch.setattr("duly.dashboard.application_view.LOOKS", 2)
    wanted = shop.charge.enqueue(42)
    for number in range(10):
        shop.charge.enqueue(1_000 + number)

    looked, before = 0, ""
    while before is not None:
        page = client.get("/api/runs", params={"q": "args.order_id:42", "before": before}).json()
        looked, before = looked + 1, page["next"]

    assert [run["id"] for run in page["runs"]] == [wanted.id]
    assert looked == 2, "six runs per page"


@pytest.mark.stores("sqlite")
def test_counting_stops_after_a_time_limit(busy, client, monkeypatch):
    monkeypatch.setattr("duly.dashboard.application_view.COUNT_SECONDS", -1)

    page = client.submit("/dead/confirm", verb="retry", scope="matching", q="error:bank")

    assert "Retry 0+ runs?" in page.text


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?kind=run&verb=explode&name=x",
        "?kind=run&verb=cancel&name=x",
        "?kind=run&verb=retry&name=x%00",
        "?kind=schedule&verb=pause&name=nothing",
        "?kind=schedule&verb=run&name=nothing",
        "?kind=run&verb=discard&name=x",
    ],
)
def test_a_confirmation_of_an_unknown_action_is_not_found(busy, client, query):
    assert client.get(f"/ask{query}").status_code == 404


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?kind=queue&verb=limit&name=mail&limit=many", "a limit must be a whole number"),
        ("?kind=queue&verb=limit&name=mail&limit=0", "a limit must be a whole number"),
        ("?kind=schedule&verb=backfill&name=half-hourly-sync&from=x&to=y", "a date and a time"),
        (
            "?kind=schedule&verb=backfill&name=half-hourly-sync&to=y&from=0001-01-01T00:00%2B14:00",
            "a date and a time",
        ),
        (
            "?kind=schedule&verb=backfill&name=half-hourly-sync&from=2026-01-02&to=2026-01-01",
            "from must be before to",
        ),
    ],
)
def test_a_confirmation_with_a_wrong_field_explains_the_error(busy, client, query, words):
    answer = client.get(f"/ask{query}")

    assert (answer.status_code, words in answer.text) == (409, True)


def test_a_confirmation_names_the_consequences_and_changes_nothing(busy, client):
    (waiting,) = busy.app.runs.list(queue="mail", state="queued")
    queue = client.get("/ask?kind=queue&verb=pause&name=mail").text
    run = client.get(f"/ask?kind=run&verb=cancel&name={waiting.id}").text
    odd = client.get("/ask", params={"kind": "queue", "verb": "pause", "name": "a/b <c>"}).text

    assert "do not start until an operator" in queue
    assert "ends as cancelled and never starts" in run
    assert 'action="/queues/a%2Fb%20%3Cc%3E/pause"' in odd
    assert waiting.refresh().state == "queued"
    reader = client_of(busy.app, write=False)
    assert "Pause the queue" not in reader.get("/ask?kind=queue&verb=pause&name=mail").text


def test_the_duration_of_a_run_includes_its_retries(shop, client):
    @shop.app.task(name="shop.orders:flaky", retries=Retry(1, base=0.3, jitter=False))
    def flaky():
        if current().attempt == 1:
            raise ConnectionError("again")

    run = flaky.enqueue()
    with shop.app.worker():
        run.result(timeout=30)

    row = client.get("/runs?q=task:shop.orders:flaky").text.partition("data-row")[2]
    page = client.get(f"/runs/{run.id}").text

    assert re.search(r'<td class="right">([3-9]\d\d ms|\d\.\d\d s)</td>', row), (
        "the duration includes the back-off"
    )
    assert re.search(r"Start to end</dt><dd>([3-9]\d\d ms|\d\.\d\d s)", page)
    assert "First started" in page
    assert "Last started" in page


@pytest.mark.stores("postgres")
def test_the_overview_names_the_session_whose_transaction_is_open_for_too_long(
    shop, client, store_url, monkeypatch
):
    shop.charge.enqueue(1)
    monkeypatch.setattr("duly.core.record._LONG_SECONDS", -1)
    with closing(psycopg.connect(store_url, application_name="nightly report")) as other:
        other.execute("SELECT count(*) FROM duly_runs")

        page = client.get("/").text

        assert f"in session {other.info.backend_pid} of user" in page
        assert "nightly report" in page


def test_a_failed_run_that_succeeded_after_a_retry_is_no_failure_any_more(shop, client):
    failed = shop.charge.enqueue(1)
    shop.app.enqueue_many(shop.nothing.call(number) for number in range(7))
    shop.app.worker().drain()
    before = client.get("/").text
    shop.broken = False

    for _ in range(2):
        failed.retry()
        shop.app.worker().drain()

    after = {path: client.get(path).text for path in ("/", "/?window=1h", "/?window=7d", "/tasks")}
    assert "12 % of the last hour&#39;s runs failed (1 of 8)" in before
    assert "Nothing failed" not in before
    for path, page in after.items():
        assert "runs failed" not in page, path
        assert ("Nothing failed" in page) == (path != "/tasks"), path
        assert ('id="ended">8<' in page) == (path != "/tasks"), path
    assert "charge" in after["/tasks"]
    families = text_string_to_metric_families(client.get("/metrics").text)
    (runs,) = [each for each in families if each.name == "duly_runs"]
    ends = {sample.labels["outcome"]: sample.value for sample in runs.samples}
    assert ends["failed"] == 1, "counters of monitors never shrink"

"""Limits on one viewer's requests: long filters, large pages, slow bodies, hostile text."""

import asyncio
import html
import json
import re
from time import thread_time
from urllib.parse import parse_qs, urlsplit

import pytest

from duly.clock import MICROSECONDS, monotonic
from duly.core.record import AttemptRecord, FinishedRunsByTask
from duly.dashboard import dashboard, search_query
from duly.dashboard.application_view import ApplicationView
from duly.dashboard.waterfall import waterfall
from duly.limits import FILTER_CHARACTERS, FILTER_TERMS, FOREVER_SECONDS, HTTP_BODY_BYTES
from duly.observe.metrics import exposition
from tests.dashboard.test_waterfall import RUN, step

ON_ONE = pytest.mark.stores("sqlite")
"""Marks tests of the request itself, which do not depend on the store."""

LONG = "error:" + "x" * FILTER_CHARACTERS
MANY = " ".join(f"args.a{number}:1" for number in range(FILTER_TERMS + 1))


@ON_ONE
@pytest.mark.parametrize("text", [LONG, MANY])
def test_a_filter_that_is_too_long_finds_nothing_and_acts_on_nothing(busy, client, text):
    answer = client.get("/api/runs", params={"q": text})
    page = client.get("/runs", params={"q": text})
    form = {"verb": "retry", "scope": "matching", "q": text}
    act = client.submit("/dead/act", **form)

    assert answer.status_code == 422
    assert "A filter has at most" in answer.json()["detail"]
    assert "A filter has at most" in page.text
    assert act.status_code == 409
    assert len(busy.app.dead.list()) == 13


def test_the_arguments_of_a_run_are_decoded_once_for_all_terms(monkeypatch):
    search = search_query.read(" ".join(f"args.a.{number}:1" for number in range(FILTER_TERMS)), 0)
    decoded = []
    loads = json.loads
    text = json.dumps([[], {"a": [1] * FILTER_TERMS}])
    monkeypatch.setattr(
        search_query.json, "loads", lambda given: [decoded.append(1), loads(given)][1]
    )

    assert search.fits(text)
    assert len(decoded) == 1


def test_a_search_returns_partial_results_when_its_time_is_over(shop, client, monkeypatch):
    monkeypatch.setattr("duly.dashboard.application_view.SEARCH_SECONDS", -1)
    wanted = shop.charge.enqueue(42)
    for number in range(2):
        shop.charge.enqueue(1_000 + number)

    looked, before, found = 0, "", []
    while before is not None:
        page = client.get("/api/runs", params={"q": "args.order_id:42", "before": before}).json()
        looked, before = looked + 1, page["next"]
        found += [run["id"] for run in page["runs"]]

    assert found == [wanted.id]
    assert looked == 4, "one run per page, and an empty last page"


def test_a_search_stops_when_the_time_of_its_page_is_over(shop, monkeypatch):
    for number in range(3):
        shop.charge.enqueue(number)
    view = ApplicationView(shop.app, shows_arguments=True, writes=False)
    monkeypatch.setattr("duly.dashboard.application_view.seconds_left", lambda: 0.0)

    found, following = view.find(search_query.read("error:bank", 0), 50)

    assert found == []
    assert following is not None


@ON_ONE
@pytest.mark.parametrize("limit", ["000000200999", "0200", "201", "9" * 5_000, "٢", "+5", " 5"])
@pytest.mark.parametrize("name", ["runs", "dead", "schedules"])
def test_a_limit_that_is_no_number_within_the_bound_is_refused(client, name, limit):
    answer = client.get(f"/api/{name}", params={"limit": limit})

    assert answer.status_code == 422
    assert "limit" in answer.json()["detail"]


def post_in_pieces(pages, receive):
    """Send a form to a page. `receive` returns the parts of the form."""
    sent = []

    async def send(message):
        sent.append(message)

    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/x-www-form-urlencoded"),
    ]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/queues/mail/pause",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "scheme": "http",
    }
    asyncio.run(pages(scope, receive, send))
    return sent[0]["status"]


@ON_ONE
def test_a_body_in_tiny_pieces_is_read_in_linear_time(shop):
    left = [HTTP_BODY_BYTES]

    async def receive():
        left[0] -= 1
        return {"type": "http.request", "body": b"x", "more_body": left[0] > 0}

    began = monotonic()
    status = post_in_pieces(dashboard(shop.app, auth=lambda _: "ann", write=True), receive)

    assert status == 403, "the form has no token"
    assert monotonic() - began < 20


@ON_ONE
def test_a_body_that_does_not_end_is_abandoned(shop, monkeypatch):
    monkeypatch.setattr("duly.dashboard.request_body.HTTP_FORM_SECONDS", 0.05)

    async def receive():
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    assert post_in_pieces(dashboard(shop.app, auth=lambda _: "ann", write=True), receive) == 413


@ON_ONE
def test_the_time_for_metrics_grows_in_proportion_to_the_tasks(shop, monkeypatch):
    def seconds_for(tasks):
        rows = [
            FinishedRunsByTask(
                f"task{task}", f"queue{task}", "succeeded", 5, 5, runs=1, elapsed=1, delay=1
            )
            for task in range(tasks)
        ]
        monkeypatch.setattr(shop.app.store, "count_every_end_of_tasks", lambda _since: rows)
        began = thread_time()
        text = exposition(shop.app)
        assert text.count(b"duly_run_duration_seconds_count") == tasks
        return thread_time() - began

    few = min(seconds_for(200) for _ in range(3))

    assert seconds_for(3_200) < 5 * 16 * few


def test_the_time_for_bars_grows_in_proportion_to_the_attempts_and_steps():
    most = 10_000
    attempts = [
        AttemptRecord("run", at, 1, 1, "suspended", "w", at, at + 1, None, None)
        for at in range(most)
    ]
    steps = [
        step(f"s{at}", 0, None)._replace(began_at=at, ended_at=at, done=True) for at in range(most)
    ]
    run = RUN._replace(finished_at=most)

    began = thread_time()
    rows = waterfall(run, attempts, steps, most)

    assert len(rows) >= 2 * most
    assert thread_time() - began < 5


TAGS = [
    ("tenant", "acme"),
    ("tenant", ""),
    ("tenant", 'x" state:failed'),
    ("tenant", 'x" tag:other=1 "'),
    ("tenant", '\\" state:succeeded \\'),
    ("tenant", '"'),
    ("tenant", "\\"),
    ("tenant", "two words"),
    ("tenant", " "),
    ("tenant", "line\nline\r\n\ttab"),
    ("tenant", "a=b"),
    ("tenant", "x\u00a0state:failed"),
    ("tenant", "é\u2028\u202e<b>"),
    ("a=b", "c"),
    ('n" state:failed', "v"),
    ("n\\", "v"),
    ("state:failed", "task:x"),
]


@pytest.mark.parametrize(("name", "value"), TAGS)
def test_a_tag_stays_one_term_of_a_filter(name, value):
    search = search_query.read(search_query.tag_term(name, value), 0)

    assert search.which.tag == (name, value)
    assert search.hints == ()
    assert search == search_query.read("", 0)._replace(text=search.text, which=search.which)
    assert search.which == search_query.read("", 0).which._replace(tag=(name, value))


@pytest.mark.parametrize("value", ["shop:send", 'a"b', 'a" state:failed', "a\\", "a b", '"'])
@pytest.mark.parametrize("name", ["task", "queue"])
def test_a_name_stays_one_term_of_a_filter(name, value):
    search = search_query.read(search_query.term(name, value), 0)

    assert search.hints == ()
    assert search.which == search_query.read("", 0).which._replace(**{name: value})


@pytest.mark.parametrize(("name", "value"), TAGS)
@ON_ONE
def test_the_link_of_a_tag_finds_the_runs_with_that_tag_and_retries_no_others(
    shop, client, name, value
):
    tagged = shop.charge.using(tags={name: value}).enqueue(1)
    shop.charge.enqueue(2)
    shop.app.worker().drain()

    page = client.get(f"/runs/{tagged.id}").text
    link = html.unescape(re.search(r'class="tag" href="([^"]+)"', page)[1])
    text = parse_qs(urlsplit(link).query, keep_blank_values=True)["q"][0]
    found = client.get("/api/runs", params={"q": text}).json()
    listed = client.get("/runs", params={"q": text}).text
    kept = html.unescape(
        re.search(
            r'name="scope" value="matching"><input type="hidden" name="q" value="([^"]*)"', listed
        )[1]
    )
    # Browsers send line ends of a form as CRLF.
    sent = re.sub(r"\r\n|\r|\n", "\r\n", kept)
    asked = client.submit("/dead/confirm", verb="retry", scope="matching", q=sent)

    assert [run["id"] for run in found["runs"]] == [tagged.id]
    assert "Retry 1 run?" in asked.text


@pytest.mark.parametrize(
    "text",
    [
        "tag:a=1 tag:b=2",
        "task:a task:b",
        "queue:a queue:b",
        "key:a key:b",
        "error:a error:b",
        "since:1h since:2h",
        "00000000-0000-0000-0000-000000000000 id:00000000-0000-0000-0000-000000000001",
    ],
)
def test_a_term_that_is_given_twice_is_refused(text):
    search = search_query.read(text, 0)

    assert len(search.hints) == 1
    assert "once" in search.hints[0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1.5h", 5_400),
        ("24h", 86_400),
        ("2w", 1_209_600),
        ("9" * 400, FOREVER_SECONDS),
    ],
)
def test_a_filter_accepts_the_durations_of_commands(text, seconds):
    search = search_query.read(f"since:{text}", 0)

    assert search.which.since == -seconds * MICROSECONDS


@pytest.mark.parametrize("text", ['tag:"a=b', 'task:"x', '"', r'error:"C:\path"', r'tag:"a\=b"'])
def test_a_quoted_value_that_cannot_be_parsed_is_refused(text):
    assert search_query.read(text, 0).hints


@pytest.mark.parametrize(
    "narrower",
    ["tag:tenant=8", "since:1h args.order_id:8", "error:bank", "args.order_id:8", "fingerprint:x"],
)
def test_a_key_or_an_id_finds_only_runs_that_fit_the_other_terms_too(shop, client, narrower):
    run = shop.charge.using(key="k", tags={"tenant": "7"}).enqueue(7)

    def found(text):
        return [each["id"] for each in client.get("/api/runs", params={"q": text}).json()["runs"]]

    for text in ("key:k", f"id:{run.id}"):
        assert found(f"{text} tag:tenant=7 args.order_id:7 since:1h") == [run.id]
        assert found(f"{text} {narrower}") == []

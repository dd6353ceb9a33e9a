"""The stream that keeps a page up to date, without a browser."""

import asyncio
from wsgiref.util import setup_testing_defaults

import pytest
from a2wsgi import ASGIMiddleware

from duly.clock import monotonic
from duly.dashboard import TokenAuth, live
from duly.dashboard.live import LivePages
from duly.errors import ReadTooSlow, StoreUnavailable
from tests.dashboard.conftest import client_of, opened
from tests.servers.processes import wait_until
from tests.store.conformance.slow import slow_down_acts

TOKEN = "k3Jq9-Zx_7Lw2Rt5Vb8Nm1Pd4"  # noqa: S105 - for this test only


class Page:
    """A page that shows a sequence of contents until its viewer disconnects."""

    def __init__(self, *shown):
        self._shown = list(shown)

    async def is_disconnected(self):
        return not self._shown

    async def render(self):
        found = self._shown.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def told(monkeypatch):
    """Returns the events of the stream of a page."""
    monkeypatch.setattr("duly.dashboard.live.LIVE_SECONDS", 0)

    def listen(*shown):
        page = Page(*shown)

        async def collect():
            answer = LivePages().answer(page, page.render, viewer="ann")
            return [event async for event in answer.body_iterator]

        return asyncio.run(collect())

    return listen


def test_a_page_is_sent_when_it_changes(told):
    assert told("one", "one", "two") == [
        "event: page\ndata: one\n\n",
        "event: page\ndata: two\n\n",
    ]


def test_the_last_page_stays_while_the_database_does_not_answer(told):
    gone = StoreUnavailable("cannot connect")

    events = told("one", gone, gone, "one")

    page = "event: page\ndata: one\n\n"
    assert events == [page, "event: trouble\ndata: The database does not answer.\n\n", page]


def test_a_slow_read_is_reported_on_the_page(told):
    (event,) = told(ReadTooSlow())

    assert event == "event: trouble\ndata: The database is slow.\n\n"


def test_a_page_that_takes_long_to_render_is_rendered_less_often():
    now = monotonic()

    assert live._pause(now) == 1.0
    assert 8 < live._pause(now - 2) < 9


def test_a_stream_ends_after_a_maximum_time(told, monkeypatch):
    monkeypatch.setattr("duly.dashboard.live.LIVE_LONGEST_SECONDS", 0)

    assert told("one") == []


@pytest.mark.stores("sqlite")  # Access does not depend on the database.
def test_a_stream_of_an_ended_session_is_refused_with_401(shop):
    client = client_of(shop.app, auth=TokenAuth(TOKEN))

    stream = client.get("/runs", headers={"Accept": "text/event-stream"})
    asked = client.head("/runs", headers={"Accept": "text/plain"})

    assert (stream.status_code, asked.status_code) == (401, 401)


@pytest.mark.stores("sqlite")
def test_a_page_says_that_the_database_does_not_answer(shop, client, monkeypatch):
    def now():
        raise StoreUnavailable("cannot connect")

    monkeypatch.setattr(shop.app.store, "now", now)

    page = client.get("/runs")

    assert page.status_code == 503
    assert "The database does not answer" in page.text


def test_a_page_that_takes_too_long_to_read_explains_the_next_step(
    shop, store_url, client, monkeypatch
):
    monkeypatch.setattr("duly.dashboard.application.PAGE_SECONDS", 0.3)
    shop.app.store.now()
    slow_down_acts(store_url)
    began = monotonic()

    page = client.get("/audit")

    assert monotonic() - began < 20
    assert page.status_code == 503
    assert "This took too long" in page.text
    assert "shorter time range or more filters" in page.text
    assert client.get("/queues").status_code == 200, "other pages are unchanged"


@pytest.mark.stores("sqlite")
def test_a_closed_page_keeps_no_stream_open_under_wsgi(shop, monkeypatch):
    """The server sends no disconnect event. The client just never reads the response."""
    monkeypatch.setattr("duly.dashboard.live.LIVE_STREAMS", 1)
    monkeypatch.setattr("duly.dashboard.live.LIVE_SEND_SECONDS", 0.1)
    pages = ASGIMiddleware(opened(shop.app))
    answers = []

    def open_page():
        environ = {"HTTP_ACCEPT": "text/event-stream", "REMOTE_ADDR": "127.0.0.1"}
        environ |= {"REMOTE_PORT": "1", "HTTP_HOST": "localhost"}
        setup_testing_defaults(environ)
        parts = pages(environ, lambda status, _headers, _error=None: answers.append(status))
        next(parts)
        return parts

    open_page().close()
    answers.clear()

    def is_open():
        open_page().close()
        return answers.pop() == "200 OK"

    wait_until(is_open, seconds=20, what="the first stream has ended")


def test_a_stream_whose_client_reads_nothing_is_closed(monkeypatch):
    monkeypatch.setattr("duly.dashboard.live.LIVE_SEND_SECONDS", 0.05)
    streams, page, sent = LivePages(), Page("one", "two"), []

    async def stuck(message):
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive():
        await asyncio.Event().wait()

    async def read():
        answer = streams.answer(page, page.render, viewer="ann")
        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        async with asyncio.timeout(20):
            await answer(scope, receive, stuck)

    asyncio.run(read())

    assert sent == ["http.response.start", "http.response.body"]
    assert streams.limit.open.total() == 0


def test_one_viewer_cannot_use_every_stream(monkeypatch):
    monkeypatch.setattr("duly.dashboard.live.LIVE_STREAMS_OF_ONE", 2)
    streams = LivePages()

    async def send(_message):
        """Discard the message."""

    async def receive():
        await asyncio.Event().wait()

    def open_page(viewer):
        page = Page("one", "two")
        return streams.answer(page, page.render, viewer=viewer)

    async def look():
        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        tasks = [asyncio.create_task(open_page("ann")(scope, receive, send)) for _ in range(2)]
        await asyncio.sleep(0)
        statuses = [open_page(viewer).status_code for viewer in ("ann", "bob")]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return statuses, open_page("ann").status_code

    statuses, afterwards = asyncio.run(look())

    assert statuses == [429, 200]
    assert afterwards == 200
    assert not streams.limit.open


@pytest.mark.stores("sqlite")
def test_a_viewer_with_too_many_pages_gets_an_explanation(shop, monkeypatch):
    monkeypatch.setattr("duly.dashboard.live.LIVE_STREAMS_OF_ONE", 0)
    client = client_of(shop.app)

    answer = client.get("/runs", headers={"Accept": "text/event-stream"})

    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    assert client.get("/runs").status_code == 200

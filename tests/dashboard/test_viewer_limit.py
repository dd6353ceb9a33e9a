"""The limit on simultaneous reads of one viewer. Other viewers still get answers."""

import asyncio
import threading
from contextlib import contextmanager
from itertools import islice

import httpx2
import pytest

from duly.api.sessions import Sessions
from duly.dashboard import BasicAuth, TokenAuth, dashboard, viewer_limit
from duly.dashboard.application_view import ApplicationView
from duly.dashboard.live import LivePages
from duly.dashboard.viewer_limit import TooManyReads, ViewerLimit
from duly.limits import READS_OF_ONE

ON_ONE = pytest.mark.stores("sqlite")
ANN, BOB = ("ann", "secret-of-ann"), ("bob", "secret-of-bob")
TOKEN = "Vq7-dX2mR9_pLk4TzB8nWc5YhJ3f"  # noqa: S105 - for these tests only
MORE_THAN_THREADS = 45
"""Starlette has 40 threads for all requests."""
SEARCH = "/runs?q=args.a:1"
SOON = 20


class Held:
    """Searches and metrics that wait until they are released."""

    def __init__(self, monkeypatch):
        self.begun = threading.Semaphore(0)
        self.released = threading.Event()
        found, exposition = ApplicationView.find, "duly.observe.metrics.exposition"

        def find(view, search, size):
            self._wait()
            return found(view, search, size)

        def expose(_desk):
            self._wait()
            return b""

        monkeypatch.setattr(ApplicationView, "find", find)
        monkeypatch.setattr(exposition, expose)

    def _wait(self):
        self.begun.release()
        assert self.released.wait(60)

    async def have_begun(self, number):
        """Wait until this number of reads is held."""
        for _ in range(number):
            assert await asyncio.to_thread(self.begun.acquire, timeout=SOON)


@pytest.fixture
def held(monkeypatch):
    """Searches wait until they are released."""
    held = Held(monkeypatch)
    yield held
    held.released.set()


def client_at(pages, address="10.0.0.1", **options):
    transport = httpx2.ASGITransport(app=pages, client=(address, 4000))
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", **options)


@contextmanager
def released_at_the_end(held):
    """Release all held reads even if the test fails: its event loop waits for all threads."""
    try:
        yield
    finally:
        held.released.set()


@ON_ONE
@pytest.mark.parametrize("path", [SEARCH, "/api/runs?q=args.a:1", "/dead/export", "/metrics"])
def test_one_viewer_cannot_use_every_read(shop, monkeypatch, held, path):
    monkeypatch.setattr(viewer_limit, "READ_WAIT_SECONDS", 0.05, raising=False)
    pages = dashboard(shop.app, auth=BasicAuth(dict([ANN, BOB])))

    async def look():
        async with client_at(pages, auth=ANN) as ann, client_at(pages, auth=BOB) as bob:
            with released_at_the_end(held):
                asked = [asyncio.create_task(ann.get(path)) for _ in range(MORE_THAN_THREADS)]
                await held.have_begun(READS_OF_ONE)
                async with asyncio.timeout(SOON):
                    other = await bob.get("/queues")
                    # A request that has not been refused when the reads are released is answered.
                    answered = islice(asyncio.as_completed(asked), len(asked) - READS_OF_ONE)
                    refused = [await each for each in answered]
            return other, refused, await asyncio.gather(*asked), await ann.get(path)

    other, refused, answers, afterwards = asyncio.run(look())

    assert other.status_code == 200
    for refusal in refused:
        assert refusal.status_code == 429
        assert int(refusal.headers["retry-after"]) > 0
        assert "too many requests open" in refusal.text
    assert [answer.status_code for answer in answers].count(200) == READS_OF_ONE
    assert afterwards.status_code == 200


@ON_ONE
def test_session_checks_of_one_viewer_do_not_use_every_thread(shop, monkeypatch):
    monkeypatch.setattr(viewer_limit, "READ_WAIT_SECONDS", 0.05)
    pages = dashboard(shop.app, auth=TokenAuth(TOKEN))
    begun, released, look = threading.Semaphore(0), threading.Event(), Sessions.has_ended

    def has_ended(sessions, session):
        begun.release()
        assert released.wait(60)
        return look(sessions, session)

    async def visit():
        other = {"headers": {"Authorization": f"Bearer {TOKEN}"}}
        first, second = client_at(pages), client_at(pages, "10.0.0.2", **other)
        async with first, second:
            await first.get("/login")
            form = {"csrf": first.cookies["duly_csrf"], "token": TOKEN}
            await first.post("/login", data=form)
            monkeypatch.setattr(Sessions, "has_ended", has_ended)
            try:
                looks = [first.get("/queues") for _ in range(MORE_THAN_THREADS)]
                asked = [asyncio.create_task(each) for each in looks]
                assert await asyncio.to_thread(begun.acquire, timeout=SOON)
                async with asyncio.timeout(SOON):
                    answer = await second.get("/queues")
                    await next(asyncio.as_completed(asked))  # The first answer is a refusal.
            finally:
                released.set()
            return answer.status_code, [one.status_code for one in await asyncio.gather(*asked)]

    others, own = asyncio.run(visit())

    assert others == 200
    assert set(own) == {200, 429}


@ON_ONE
def test_a_refused_action_reports_that_nothing_was_done(shop, monkeypatch, held):
    monkeypatch.setattr(viewer_limit, "READ_WAIT_SECONDS", 0.05)
    pages = dashboard(shop.app, auth=BasicAuth(dict([ANN])), write=True)

    async def act():
        async with client_at(pages, auth=ANN) as ann:
            await ann.get("/audit")
            form = {"csrf": ann.cookies["duly_csrf"]}
            with released_at_the_end(held):
                asked = [asyncio.create_task(ann.get(SEARCH)) for _ in range(READS_OF_ONE)]
                await held.have_begun(READS_OF_ONE)
                answer = await ann.post("/queues/mail/pause", data=form)
            await asyncio.gather(*asked)
            return answer

    answer = asyncio.run(act())

    assert answer.status_code == 429
    assert "Nothing was done." in answer.text
    assert not shop.app.store.list_audit_entries("mail", 1)


@ON_ONE
@pytest.mark.parametrize(
    ("auth", "credentials", "address", "is_counted_with"),
    [
        (BasicAuth(dict([ANN])), {"auth": ANN}, "10.0.0.2", True),
        (TokenAuth(TOKEN), {"headers": {"Authorization": f"Bearer {TOKEN}"}}, "10.0.0.1", True),
        (TokenAuth(TOKEN), {"headers": {"Authorization": f"Bearer {TOKEN}"}}, "10.0.0.2", False),
        (lambda _request: True, {}, "10.0.0.1", True),
        (lambda _request: True, {}, "10.0.0.2", False),
    ],
)
def test_viewers_are_counted_by_name_and_viewers_that_share_a_name_by_address(
    shop, monkeypatch, held, auth, credentials, address, is_counted_with
):
    monkeypatch.setattr(viewer_limit, "READ_WAIT_SECONDS", 0.05)
    pages = dashboard(shop.app, auth=auth)

    async def look():
        first, second = client_at(pages, **credentials), client_at(pages, address, **credentials)
        async with first, second:
            with released_at_the_end(held):
                asked = [asyncio.create_task(first.get(SEARCH)) for _ in range(READS_OF_ONE)]
                await held.have_begun(READS_OF_ONE)
                answer = await second.get("/queues")
            await asyncio.gather(*asked)
            return answer.status_code

    assert asyncio.run(look()) == (429 if is_counted_with else 200)


def test_waiting_requests_are_admitted_in_order():
    limit, order = ViewerLimit(1), []

    async def read(number, room):
        async with limit.awaited("ann", None):
            order.append(number)
            await room.wait()

    async def look():
        room = asyncio.Event()
        tasks = [asyncio.create_task(read(number, room)) for number in range(4)]
        await asyncio.sleep(0)
        assert order == [0]
        tasks[1].cancel()  # A disconnected client takes no slot.
        room.set()
        await asyncio.wait(tasks)

    asyncio.run(look())

    assert order == [0, 2, 3]
    assert not limit.open


def test_a_slot_given_to_a_cancelled_request_passes_to_the_next_request():
    limit = ViewerLimit(1)

    async def read():
        async with limit.awaited("ann", None):
            pass

    async def look():
        async with limit.awaited("ann", None):
            waiting = [asyncio.create_task(read()) for _ in range(2)]
            await asyncio.sleep(0)
        waiting[0].cancel()  # Cancelled at the moment at which it got the slot.
        async with asyncio.timeout(SOON):
            await waiting[1]

    asyncio.run(look())

    assert not limit.open


def test_a_live_page_does_not_change_while_its_viewer_reads_too_much(monkeypatch):
    monkeypatch.setattr("duly.dashboard.live.LIVE_SECONDS", 0)
    shown = ["one", TooManyReads(), "one", "two"]

    class Page:
        async def is_disconnected(self):
            return not shown

    async def render():
        found = shown.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def collect():
        answer = LivePages().answer(Page(), render, viewer="ann")
        return [event async for event in answer.body_iterator]

    assert asyncio.run(collect()) == ["event: page\ndata: one\n\n", "event: page\ndata: two\n\n"]

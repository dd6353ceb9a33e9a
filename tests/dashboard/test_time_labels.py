"""Without scripts, every date and time on a page is labelled with UTC or a local zone."""

import re
from html.parser import HTMLParser

import pytest

from duly import current, step
from duly.clock import new_id
from duly.errors import AttemptTimedOut
from duly.store.ops.operators import RecordAuditEntry
from tests.dashboard.test_actions import wait_for_job
from tests.dashboard.test_pages import PAGES
from tests.store.conformance.stores import opened_tables

SOON = 20
TIME = re.compile(
    r"\b\d{1,2}:\d\d\b|\b\d{4}-\d\d-\d\d\b|\b\d\d-\d\d \d\d:"
    r"|\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d\d\b"
    r"|\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d\d\b"
)
ZONE = re.compile(r"\bUTC\b|\bEurope/Berlin\b|[+-]\d\d:?\d\d$")
LABEL = re.compile(r"^times in (UTC|Europe/Berlin)$")
LINES = frozenset({"p", "li", "td", "th", "dd", "label"})
VOID = frozenset({"area", "br", "col", "hr", "img", "input", "link", "meta"})
SHOWN = ("title", "aria-label", "placeholder")
BACKFILL = "/ask?kind=schedule&verb=backfill&name=nightly-report&from=2026-01-01&to=2026-01-02"


class Page(HTMLParser):
    """The texts of a page that contain a time, and those of them that name no zone.

        A zone may be in the text itself or in its line: its paragraph, its list item or its cell.
    Otherwise the heading of its section or column must name the zone.
    """

    def __init__(self, html):
        super().__init__()
        self.times, self._texts, self._open = [], [], []
        self._next = 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self._next += 1
        self._open += [] if tag in VOID else [(tag, self._next)]
        for name, value in attributes:
            if name in SHOWN and value and TIME.search(value):
                self.times.append((value, ZONE.search(value) is not None))

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag, f"{tag} is closed but was not open"

    def handle_data(self, data):
        if data.strip() and not {"script", "pre"} & {tag for tag, _ in self._open}:
            self._texts.append((" ".join(data.split()), tuple(self._open)))

    def close(self):
        super().close()
        for text, around in self._texts:
            if TIME.search(text):
                self.times.append((text, self._names_zone(text, around)))

    def _names_zone(self, text, around):
        line, table, section = (
            next((each for each in reversed(around) if each[0] in tags), None)
            for tags in (LINES, {"table"}, {"section"})
        )
        return (
            ZONE.search(text) is not None
            or any(line in other and ZONE.search(words) for words, other in self._texts)
            or any(section in other and LABEL.match(words) for words, other in self._texts)
            or any(
                table in other and other[-1][0] == "th" and ZONE.search(words)
                for words, other in self._texts
            )
        )


@pytest.fixture
def held(busy):
    """A run that was interrupted in a step that must not start twice. Its attempt logged a line."""

    def charge():
        current().log.info("asking the bank")
        raise AttemptTimedOut

    @busy.app.task(name="shop.orders:pay", retries=0)
    def pay():
        step("charge", charge, on_crash="hold")

    run = pay.enqueue()
    busy.app.worker().drain()
    return run


@pytest.fixture
def running(busy):
    """A running run that has logged a line."""
    busy.app.queues.resume("reports", actor="bob")
    with busy.app.worker():
        run = busy.nightly.enqueue()
        assert busy.started.wait(SOON)
        yield run
        busy.released.set()


def test_every_time_on_every_page_names_its_zone(busy, held, running, client):
    busy.app.store.do(RecordAuditEntry("ann", "deploy", "deployment", "v1.4"))
    (fulfilled,) = busy.app.runs.list(task="shop.orders:fulfil")
    group = busy.app.dead.groups()[0]
    bulk = client.submit("/dead/act", verb="retry", id=[held.id], reason="again", ticket=new_id())
    wait_for_job(client, bulk)
    with_times = {
        *("/", "/?window=7d", "/schedules", "/schedules/nightly-report", BACKFILL),
        *(f"/runs/{run.id}" for run in (fulfilled, held, running)),
        *("/runs", "/dead", "/audit", "/workers", bulk.url.path),
        f"/dead/group?task={group.task}&fingerprint={group.fingerprint}",
    }
    for path in {*PAGES, *with_times, f"/runs/{fulfilled.id}/edit"}:
        page = Page(client.get(path).text)

        assert page.times or path not in with_times, f"{path} shows no time"
        assert [text for text, is_labelled in page.times if not is_labelled] == [], path


def test_times_in_an_unknown_zone_are_labelled_as_utc(busy, client):
    with opened_tables(busy.app.url) as tables:
        tables.execute("UPDATE duly_schedules SET trigger = replace(trigger, 'Europe/', 'Mars/')")

    page = client.get("/schedules/nightly-report").text

    assert "in Mars/Berlin" in page
    assert re.search(r"Last firings</h2><span[^>]*>times in UTC<", page)

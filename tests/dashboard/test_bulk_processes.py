"""Bulk actions with two server processes. Tests may kill one process."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import httpx2
import pytest

from duly.limits import PAGE
from tests.dashboard.visit import Visit
from tests.servers.processes import wait_until

pytestmark = pytest.mark.timeout(180)
RUNS = 2 * PAGE + 50
FORM = {"verb": "retry", "scope": "matching", "q": "task:shop.orders:charge"}
RESULT = re.compile(r"<b>([\d,]+)</b> done, <b>([\d,]+)</b> skipped")


class Server:
    """A server process, and a client of it."""

    def __init__(self, url: str, faultpoints: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.dashboard.bulk_server", url],
            env={**os.environ, "DULY_FAULTPOINTS": faultpoints},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self._client = httpx2.Client(base_url=self.address, timeout=60)

    def get(self, path: str, **parameters: str) -> httpx2.Response:
        """Get a page."""
        return self._client.get(path, params=parameters)

    def submit(self, path: str, **fields: str) -> httpx2.Response:
        """Submit a form of a page of this dashboard."""
        self._client.get("/audit")
        csrf = self._client.cookies["duly_csrf"]
        return self._client.post(path, data={"csrf": csrf, **fields})

    def close(self) -> None:
        """Stop the process."""
        self._client.close()
        self.process.kill()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def server(shop, store_url: str) -> Iterator[Callable[..., Server]]:
    """Starts server processes of one dashboard that already has dead letters."""
    shop.app.enqueue_many(shop.charge.call(number) for number in range(RUNS))
    shop.app.worker().drain()
    servers: list[Server] = []

    def start(faultpoints: str = "") -> Server:
        servers.append(Server(store_url, faultpoints))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


def ticket_of(page: httpx2.Response) -> str:
    found = re.search(r'name="ticket" value="([^"]+)"', page.text)
    assert found is not None
    return found[1]


def result_of(server: Server, address: str) -> tuple[int, int]:
    """Wait for the end of a bulk action. Return the numbers of done and skipped runs."""

    def is_over() -> bool:
        return "Finished." in server.get(address).text

    wait_until(is_over, seconds=60, what="the act ends")
    found = RESULT.search(server.get(address).text)
    assert found is not None
    return int(found[1].replace(",", "")), int(found[2].replace(",", ""))


def test_every_process_shows_the_progress_and_one_ticket_starts_one_bulk_action(server, shop):
    first, second = server(), server()
    form = FORM | {"ticket": ticket_of(first.submit("/dead/confirm", **FORM)), "reason": "again"}

    addresses = {each.submit("/dead/act", **form).headers["location"] for each in (first, second)}

    (address,) = addresses
    for each in (first, second, first, second):
        assert each.get(address).status_code == 200
    assert result_of(first, address) == result_of(second, address) == (RUNS, 0)
    acts = [
        act
        for act in shop.app.store.list_audit_entries(None, 1000)
        if act.subject.startswith("bulk ")
    ]
    assert [(act.act, act.actor, act.reason) for act in acts] == [
        (f"retry {RUNS} runs", "anonymous", "again")
    ]
    assert acts[0].subject.removeprefix("bulk ") in address
    audit = second.get("/audit", subject=acts[0].subject).text
    assert f'href="{address}"' in audit


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_another_process_continues_after_a_kill_and_counts_each_run_once(server, shop, point):
    # The first write starts the bulk action, and each further write is a page of runs.
    doomed, other = server(f"operate.{point}=kill@3"), server()
    form = FORM | {"ticket": ticket_of(doomed.submit("/dead/confirm", **FORM))}
    with suppress(httpx2.TransportError):  # The server may die before it has answered.
        doomed.submit("/dead/act", **form)
    doomed.process.wait(60)
    # The retried runs fail again. The bulk action must not retry them twice.
    shop.app.worker().drain()

    address = f"/bulk/{form['ticket']}"

    assert other.get(address).status_code == 200
    assert result_of(other, address) == (RUNS, 0)
    shop.app.worker().drain()
    generations = [run.generation for run in every_charge(shop)]
    assert generations == [2] * RUNS


@pytest.mark.browser
def test_a_page_of_another_process_shows_the_result_of_an_action_after_a_kill(
    server, shop, browser
):
    doomed, other = server("operate.before_commit=kill@3"), server()
    form = FORM | {"ticket": ticket_of(doomed.submit("/dead/confirm", **FORM))}
    with suppress(httpx2.TransportError):
        doomed.submit("/dead/act", **form)

    with Visit(browser, other.address) as visit:
        page = visit.go(f"/bulk/{form['ticket']}")
        page.get_by_text("Finished.").wait_for()

        assert f"{RUNS} done, 0 skipped" in page.get_by_role("main").inner_text()
        assert visit.wrong == []


def every_charge(shop):
    cursor = None
    while True:
        page = shop.app.runs.list(task="shop.orders:charge", limit=PAGE, cursor=cursor)
        yield from (run.record for run in page)
        cursor = page.cursor
        if cursor is None:
            return

"""Takes the pictures of the docs: `python -m tests.dashboard.pictures docs/images`.

The pictures show a shop after a day's work at two widths. They are compressed to stay small.
"""

import random
import sqlite3
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import uvicorn
from playwright.sync_api import sync_playwright

from duly.dashboard.server import listen
from duly.store.ops.operators import RecordAuditEntry
from tests.dashboard.conftest import opened
from tests.dashboard.shop import Shop
from tests.dashboard.test_million import TALLIES
from tests.servers.kinds import kind_or_skip

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 360, "height": 780}


HIDE_PLACES = """
root => document.querySelectorAll("pre").forEach(each => {
  each.textContent = each.textContent.replaceAll(root, "/srv/shop");
})
"""
"""Hides the folders of the machine that takes the pictures."""


def work_all_day(file, now):
    """Write the counts of a day's work."""
    draw = random.Random(4)  # noqa: S311 - repeatable, not secret
    hour = 3_600_000_000
    ends = [
        (
            now // hour * hour - back * hour,
            3600,
            task,
            queue,
            state,
            took,
            50,
            runs,
            runs * took * 600,
        )
        for back in range(1, 24)
        for task, queue, state, took, runs in (
            ("shop.mail:send_receipt", "mail", "succeeded", 50, draw.randrange(20, 90)),
            ("shop.orders:charge", "default", "succeeded", 250, draw.randrange(10, 40)),
            ("shop.orders:charge", "default", "failed", 1_000, draw.randrange(0, 3)),
            ("shop.orders:pack", "default", "cancelled", 25, draw.randrange(0, 4)),
        )
        if runs
    ]
    rows = [(*end, end[7] * draw.randrange(5_000, 60_000)) for end in ends]
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.executemany(TALLIES.format(marks=", ".join("?" * 10)), rows)


def pages_of(shop):
    """Return the address of each picture, by name."""
    (run,) = shop.app.runs.list(task="shop.orders:fulfil")
    group = shop.app.dead.groups()[0]
    return {
        "overview": "/",
        "runs": "/runs",
        "run": f"/runs/{run.id}",
        "edit": f"/runs/{shop.app.dead.list(task='shop.orders:charge')[0].id}/edit",
        "dead": "/dead",
        "group": f"/dead/group?task={group.task}&fingerprint={group.fingerprint}",
        "schedules": "/schedules",
        "schedule": "/schedules/nightly-report",
        "queues": "/queues",
        "workers": "/workers",
        "tasks": "/tasks",
        "audit": "/audit",
    }


def served(app):
    """Serve a dashboard. Return its address and a function that stops it."""
    socket = listen("127.0.0.1", 0)
    config = uvicorn.Config(opened(app, write=True), log_level="error")
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True).start()
    return f"http://127.0.0.1:{socket.getsockname()[1]}", server


def take(browser, address, pages, folder, *, full=()):
    """Take each page at both widths, and the first page in the dark theme."""
    for viewport, suffix in ((WIDE, ""), (PHONE, "-phone")):
        context = browser.new_context(viewport=viewport, reduced_motion="reduce")
        page = context.new_page()
        for name, path in pages.items():
            page.goto(address + path, wait_until="load")
            page.wait_for_timeout(500)
            page.evaluate(HIDE_PLACES, str(Path(__file__).parents[2]))
            whole = name in full
            page.screenshot(path=folder / f"{name}{suffix}.png", full_page=whole)
        context.close()
    if not full:
        return
    context = browser.new_context(viewport=WIDE, color_scheme="dark")
    page = context.new_page()
    page.goto(address + "/", wait_until="load")
    page.locator("canvas").wait_for()
    page.screenshot(path=folder / f"{next(iter(pages))}-dark.png")
    context.close()


def main(folder):
    """Take all pictures."""
    kind = kind_or_skip("chromium")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=kind.binaries, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        empty = Shop(f"sqlite:///{place}/empty.db")
        shop = Shop(f"sqlite:///{place}/shop.db")
        with closing(empty.app), closing(shop.app):
            shop.fill()
            work_all_day(f"{place}/shop.db", shop.app.store.now())
            shop.app.store.do(RecordAuditEntry("ann", "deploy", "deployment", "v1.4.2-rc1"))
            shop.app.queues.resume("reports", actor="bob")
            with shop.app.worker(version="1.4.2-rc1"):
                shop.nightly.enqueue()
                shop.started.wait(10)
                shop.app.queues.limit("mail", 4, actor="ann")
                address, server = served(shop.app)
                take(browser, address, pages_of(shop), folder, full=("overview", "run", "schedule"))
                server.should_exit = True
                shop.released.set()
            address, server = served(empty.app)
            pages = {f"empty-{name or 'overview'}": f"/{name}" for name in ("", "runs", "dead")}
            take(browser, address, pages, folder)
            server.should_exit = True
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

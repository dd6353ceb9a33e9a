"""The article's webhook, moved to duly while messages of the old application are in the queue."""

import os
import signal
from collections import Counter
from contextlib import closing

import celery
import pytest

from duly.guard import Guard
from tests.integrations.celery.workers import CeleryWorker
from tests.servers.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SOON = 60.0
TASK = "examples.celery_webhook.process_webhook"


class Webhooks:
    """The old application's queue, and the notes of the new application's workers."""

    def __init__(self, folder, redis_url, store_url):
        self._logs, self._folder, self._redis_url = folder, folder / "webhooks", redis_url
        (self._folder / "customers").mkdir(parents=True)
        (self._folder / "customers" / "ann").touch()
        self._environment = {
            "WEBHOOK_BROKER": redis_url,
            "WEBHOOK_FOLDER": str(self._folder),
            "DULY_URL": store_url,
        }

    def send(self, *events, customer="ann"):
        """Send a message as a web process of the old application does."""
        with celery.Celery("old", broker=self._redis_url, set_as_current=False) as old:
            for event in events:
                payload = {"id": event, "customer": customer}
                old.send_task(TASK, args=[payload], queue="default")

    def worker(self):
        """Return a worker of the new application, with one process in its pool."""
        options = ("-Q", "default", "--concurrency", "1")
        program = {"application": "tests.integrations.celery.webhook"}
        return CeleryWorker(self._logs, self._environment, *options, **program)

    def close_gate(self):
        """Close the gate, so that running tasks wait."""
        (self._folder / "closed").touch()

    def open_gate(self):
        (self._folder / "closed").unlink()

    def notes(self, what):
        """Return the events that were noted, each with the process that noted it."""
        place = self._folder / "notes"
        lines = place.read_text().splitlines() if place.exists() else []
        words = [line.split() for line in lines]
        return [(event, int(pid)) for found, event, pid in words if found == what]

    def count(self, what):
        return Counter(event for event, _ in self.notes(what))

    def wait_until_noted(self, what, *events):
        wait_until(
            lambda: self.count(what).keys() >= set(events),
            seconds=SOON,
            what=f"{events} are noted as {what}",
        )


@pytest.fixture
def webhooks(tmp_path, redis_url, store_url):
    with closing(Guard(store_url)) as guard:
        guard.look("none")  # Set up the store first. Otherwise the processes would race for it.
    return Webhooks(tmp_path, redis_url, store_url)


@pytest.mark.stores("sqlite")
def test_messages_of_the_old_application_are_handled_once_though_a_process_is_killed(webhooks):
    events = [f"evt_{number}" for number in range(5)]
    # Every webhook was delivered twice, except the one whose process is killed. If its message were
    # lost with the process, a second delivery would hide that.
    webhooks.send("killed", *events, *events)
    webhooks.close_gate()

    with webhooks.worker():
        webhooks.wait_until_noted("began", "killed")
        ((_, victim),) = webhooks.notes("began")
        os.kill(victim, signal.SIGKILL)
        webhooks.open_gate()
        webhooks.wait_until_noted("handled", "killed", *events)
        # There is one process. Once it has handled the last message, it has seen those before it.
        webhooks.send("last")
        webhooks.wait_until_noted("handled", "last")

    once = dict.fromkeys(["killed", *events, "last"], 1)
    assert webhooks.count("handled") == once
    assert webhooks.count("began") == once | {"killed": 2}


@pytest.mark.stores("sqlite", "postgres")
def test_messages_are_handled_once_though_the_whole_worker_is_killed(webhooks, store_url):
    """Simulate a power failure: no process is left that could return its messages."""
    with closing(Guard(store_url)) as guard:
        letters = lambda: {each.id for each in guard.letters.list()}  # noqa: E731 - of this guard
        with webhooks.worker() as worker:
            webhooks.send("stranger", customer="bob")
            wait_until(letters, seconds=SOON, what="a dead letter is kept")
            kept = letters()
            webhooks.close_gate()
            webhooks.send("first", "second", "second")
            webhooks.wait_until_noted("began", "first")
            worker.kill()
        webhooks.open_gate()
        assert webhooks.count("handled") == {}

        with webhooks.worker():
            webhooks.wait_until_noted("handled", "first", "second")
            webhooks.send("last")
            webhooks.wait_until_noted("handled", "last")

        once = dict.fromkeys(["first", "second", "last"], 1)
        assert webhooks.count("handled") == once
        began = webhooks.count("began")
        assert {event: began[event] for event in once} == once | {"first": 2}
        assert kept <= letters()

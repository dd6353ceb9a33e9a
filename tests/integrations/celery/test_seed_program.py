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

pytestmark = [pytest.mark.process, pytest.mark.timeout(240), pytest.mark.stores("sqlite")]

SOON = 60.0
TASK = "examples.celery_webhook.process_webhook"


def test_messages_of_the_old_application_are_handled_once_though_a_process_is_killed(
    tmp_path, redis_url, store_url
):
    folder = tmp_path / "webhooks"
    (folder / "customers").mkdir(parents=True)
    (folder / "customers" / "ann").touch()
    events = [f"evt_{number}" for number in range(5)]

    def send(*events: str) -> None:
        """Do what a web process of the old application does."""
        with celery.Celery("old", broker=redis_url, set_as_current=False) as old:
            for event in events:
                payload = {"id": event, "customer": "ann", "seconds": 0.3}
                old.send_task(TASK, args=[payload], queue="default")

    send(*events, *events)  # Every webhook came twice.
    with closing(Guard(store_url)) as guard:
        guard.look("none")  # Sets up the store, lest processes race for that.
    environment = {
        "WEBHOOK_BROKER": redis_url,
        "WEBHOOK_FOLDER": str(folder),
        "DULY_URL": store_url,
    }
    options = ("-Q", "default", "--concurrency", "1")
    notes = lambda what: _notes(folder, what)  # noqa: E731 - of this folder

    with CeleryWorker(
        tmp_path, environment, *options, application="tests.integrations.celery.webhook"
    ):
        wait_until(lambda: bool(notes("began")), seconds=SOON, what="one has begun")
        (victim,) = {pid for _, pid in notes("began")[:1]}
        os.kill(victim, signal.SIGKILL)
        wait_until(
            lambda: {event for event, _ in notes("handled")} == set(events),
            seconds=SOON,
            what="all are handled",
        )
        # There is one process: when it has handled the last, it has looked at those before.
        send("last")
        wait_until(lambda: "last" in dict(notes("handled")), seconds=SOON, what="it is through")
    handled = Counter(event for event, _ in notes("handled"))

    assert handled == dict.fromkeys([*events, "last"], 1)
    assert len(notes("began")) == len(handled) + 1


def _notes(folder, what):
    place = folder / "notes"
    words = [line.split() for line in place.read_text().splitlines()] if place.exists() else []
    return [(event, int(pid)) for found, event, pid in words if found == what]

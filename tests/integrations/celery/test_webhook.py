"""The article's webhook with other imports: handled once, retried, replayed, and never lost."""

import importlib
import os
import signal

import pytest

from duly.guard import Guard
from duly.integrations.celery import use_guard
from tests.integrations.celery.workers import CeleryWorker
from tests.servers.processes import wait_until

pytestmark = [
    pytest.mark.process,
    # What depends on the ledger is in its conformance suite, and in test_killing.py.
    pytest.mark.stores("sqlite"),
]

WAIT = 40


class Webhooks:
    """The example in this process, its worker, and what it has written down."""

    def __init__(self, module, guard, folder):
        self.app = module.app
        self.guard = guard
        self.process = module.process_webhook
        self.folder = folder

    def notes(self, what):
        """Return whose webhooks were noted, and by which process."""
        place = self.folder / "notes"
        words = [line.split() for line in place.read_text().splitlines()] if place.exists() else []
        return [(event, int(pid)) for found, event, pid in words if found == what]

    def events(self, what):
        """Return whose webhooks were noted, in order."""
        return [event for event, _ in self.notes(what)]

    def wait_for(self, what, count=1):
        """Wait until so many were noted."""
        found = lambda: len(self.notes(what)) >= count  # noqa: E731 - named for the wait alone
        wait_until(found, seconds=WAIT, what=f"{count} times {what}")

    def wait_for_letter(self):
        """Wait until one has died, and return its letter."""
        wait_until(lambda: bool(self.guard.letters.list()), seconds=WAIT, what="there is a letter")
        (letter,) = self.guard.letters.list()
        return letter


@pytest.fixture
def webhooks(tmp_path, redis_url, store_url, monkeypatch):
    """The example with one worker, and a customer whose name is ann."""
    folder = tmp_path / "webhooks"
    (folder / "customers").mkdir(parents=True)
    (folder / "customers" / "ann").touch()
    environment = {
        "WEBHOOK_BROKER": redis_url,
        "WEBHOOK_FOLDER": str(folder),
        "DULY_URL": store_url,
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # Imported once: Celery gives tasks to every application of a process, old ones too.
    module = importlib.import_module("examples.celery_webhook")
    module.app.conf.update(broker_url=redis_url)
    guard = use_guard(module.app, Guard(store_url))
    # A store is set up by whoever comes first; that need not be a race of processes.
    guard.look("none")
    options = ("-Q", "default", "--concurrency", "1")
    application = "tests.integrations.celery.webhook"
    with CeleryWorker(tmp_path, environment, *options, application=application):
        yield Webhooks(module, guard, folder)
    guard.close()
    module.app.close()


def test_a_payload_that_comes_again_is_handled_once(webhooks):
    payload = {"id": "evt_1", "customer": "ann"}

    webhooks.process.delay(payload)
    webhooks.process.delay(payload)
    webhooks.process.delay(payload={"customer": "ann", "id": "evt_1"})
    # There is one process: when the last is handled, those before it were looked at.
    webhooks.process.delay({"id": "evt_2", "customer": "ann"})
    webhooks.wait_for("handled", 2)

    assert webhooks.events("began") == ["evt_1", "evt_2"]
    assert webhooks.guard.letters.list() == []


def test_a_transient_error_is_tried_again(webhooks):
    (webhooks.folder / "outage").touch()
    webhooks.process.delay({"id": "evt_1", "customer": "ann"})
    webhooks.wait_for("began", 2)
    (webhooks.folder / "outage").unlink()

    webhooks.wait_for("handled")

    assert set(webhooks.events("began")) == {"evt_1"}
    assert webhooks.guard.letters.list() == []


def test_a_permanent_error_ends_as_a_letter_whose_replay_is_handled(webhooks):
    webhooks.process.delay({"id": "evt_1", "customer": "bob"})

    letter = webhooks.wait_for_letter()
    assert (letter.cause, letter.queue) == ("sent", "default")
    assert letter.error == "examples.celery_webhook.PermanentError: there is no customer bob"
    (webhooks.folder / "customers" / "bob").touch()
    webhooks.guard.letters.replay(letter.id)

    webhooks.wait_for("handled")
    assert webhooks.events("began") == ["evt_1", "evt_1"]
    assert webhooks.guard.letters.list() == []


def test_a_process_killed_while_it_handles_one_loses_nothing(webhooks):
    webhooks.process.delay({"id": "evt_1", "customer": "ann", "seconds": 1})
    webhooks.wait_for("began")
    ((_, victim),) = webhooks.notes("began")
    os.kill(victim, signal.SIGKILL)

    webhooks.wait_for("handled")

    ((_, survivor),) = webhooks.notes("handled")
    assert survivor != victim
    assert webhooks.guard.letters.list() == []

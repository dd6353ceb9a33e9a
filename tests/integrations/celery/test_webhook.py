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
    # The conformance suite and test_kills.py cover the behaviour that depends on the ledger.
    pytest.mark.stores("sqlite"),
]

WAIT = 40


class Webhooks:
    """The example in this process, its worker, and its notes."""

    def __init__(self, module, guard, folder):
        self.app = module.app
        self.guard = guard
        self.process = module.process_webhook
        self.folder = folder

    def notes(self, what):
        """Return the customers whose webhooks were noted, with the process that noted each."""
        place = self.folder / "notes"
        words = [line.split() for line in place.read_text().splitlines()] if place.exists() else []
        return [(event, int(pid)) for found, event, pid in words if found == what]

    def events(self, what):
        """Return the customers whose webhooks were noted, in order."""
        return [event for event, _ in self.notes(what)]

    def wait_for(self, what, count=1):
        """Wait until this many webhooks were noted."""
        found = lambda: len(self.notes(what)) >= count  # noqa: E731 - named for the wait alone
        wait_until(found, seconds=WAIT, what=f"{count} times {what}")

    def wait_for_dead_letter(self):
        """Wait until a task has failed, and return its dead letter."""
        wait_until(
            lambda: bool(self.guard.letters.list()), seconds=WAIT, what="there is a dead letter"
        )
        (letter,) = self.guard.letters.list()
        return letter


@pytest.fixture
def webhooks(tmp_path, redis_url, store_url, monkeypatch):
    """Yield the example with one worker, and a customer whose name is ann."""
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
    # Imported once: Celery adds tasks to every application of a process, including old ones.
    module = importlib.import_module("examples.celery_webhook")
    module.app.conf.update(broker_url=redis_url)
    guard = use_guard(module.app, Guard(store_url))
    # The first process to open a store sets it up. The test's processes need not race for that.
    guard.look("none")
    options = ("-Q", "default", "--concurrency", "1")
    application = "tests.integrations.celery.webhook"
    with CeleryWorker(tmp_path, environment, *options, application=application):
        yield Webhooks(module, guard, folder)
    guard.close()
    module.app.close()


def test_a_payload_that_is_delivered_again_is_handled_once(webhooks):
    payload = {"id": "evt_1", "customer": "ann"}

    webhooks.process.delay(payload)
    webhooks.process.delay(payload)
    webhooks.process.delay(payload={"customer": "ann", "id": "evt_1"})
    # There is one process. Once it has handled the last webhook, it has seen those before it.
    webhooks.process.delay({"id": "evt_2", "customer": "ann"})
    webhooks.wait_for("handled", 2)

    assert webhooks.events("began") == ["evt_1", "evt_2"]
    assert webhooks.guard.letters.list() == []


def test_a_transient_error_is_retried(webhooks):
    (webhooks.folder / "outage").touch()
    webhooks.process.delay({"id": "evt_1", "customer": "ann"})
    webhooks.wait_for("began", 2)
    (webhooks.folder / "outage").unlink()

    webhooks.wait_for("handled")

    assert set(webhooks.events("began")) == {"evt_1"}
    assert webhooks.guard.letters.list() == []


def test_a_permanent_error_ends_as_a_dead_letter_whose_replay_is_handled(webhooks):
    webhooks.process.delay({"id": "evt_1", "customer": "bob"})

    letter = webhooks.wait_for_dead_letter()
    assert (letter.cause, letter.queue) == ("sent", "default")
    assert letter.error == "examples.celery_webhook.PermanentError: there is no customer bob"
    (webhooks.folder / "customers" / "bob").touch()
    webhooks.guard.letters.replay(letter.id)

    webhooks.wait_for("handled")
    assert webhooks.events("began") == ["evt_1", "evt_1"]
    assert webhooks.guard.letters.list() == []


def test_a_process_that_is_killed_while_it_handles_a_webhook_loses_nothing(webhooks):
    webhooks.process.delay({"id": "evt_1", "customer": "ann", "seconds": 1})
    webhooks.wait_for("began")
    ((_, victim),) = webhooks.notes("began")
    os.kill(victim, signal.SIGKILL)

    webhooks.wait_for("handled")

    ((_, survivor),) = webhooks.notes("handled")
    assert survivor != victim
    assert webhooks.guard.letters.list() == []

"""`duly worker`: checks what it is told and hands over to the keeper."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import duly.runtime
from duly import Duly
from duly.cli.worker import LOG_LEVEL

DULY = str(Path(sys.executable).with_name("duly"))
ROOT = Path(__file__).parents[2]


@pytest.fixture
def kept(monkeypatch):
    """What the keeper was told, instead of a keeper."""
    calls = []

    def run(app, url, settings, *, processes, drain, bus):
        calls.append(SimpleNamespace(**locals()))
        return 7

    keeper = SimpleNamespace(run=run)
    monkeypatch.setitem(sys.modules, "duly.runtime.keeper", keeper)
    monkeypatch.setattr(duly.runtime, "keeper", keeper, raising=False)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    return calls


def test_options_become_settings(cli, folder, url, kept, monkeypatch):
    result = cli(
        *("worker", "orders:app", "--url", url, "-c", "3", "--async-limit", "7"),
        *("-q", "mail:20,default", "--processes", "2", "--lease", "30", "--beat", "4"),
        *("--grace", "9", "--drain"),
    )

    (call,) = kept
    assert result.exit_code == 7
    assert (call.app, call.url, call.processes, call.drain) == ("orders:app", url, 2, True)
    assert (call.settings.concurrency, call.settings.async_limit) == (3, 7)
    assert call.settings.queues == (("mail", 20), ("default", None))
    assert (call.settings.lease, call.settings.beat, call.settings.grace) == (30, 4, 9)


def test_the_store_is_named_and_the_application_not_imported(cli, folder, url, kept):
    result = cli("worker", "orders", "--url", url)

    assert "orders" not in sys.modules
    shown = Duly(url)
    assert shown.store.shown_url in result.stderr
    shown.close()


def test_the_application_can_come_from_the_environment(cli, folder, url, kept, monkeypatch):
    monkeypatch.setenv("DULY_APP", "orders:app")

    cli("worker", "--url", url, "--quiet")
    cli("worker", "--url", url, "--app", "other:app")

    assert [call.app for call in kept] == ["orders:app", "other:app"]


@pytest.mark.parametrize(
    ("options", "level"), [(("--quiet",), "WARNING"), (("-v",), "DEBUG"), ((), None)]
)
def test_loudness_reaches_the_children(cli, folder, url, kept, monkeypatch, options, level):
    # Set, so that the value the command sets is undone after the test.
    monkeypatch.setenv(LOG_LEVEL, "")
    del os.environ[LOG_LEVEL]

    cli("worker", "orders:app", "--url", url, *options)

    assert os.environ.get(LOG_LEVEL) == level


# Refused before any store is asked, so one kind is enough.
@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ("orders app",),
        ("orders.py:app",),
        ("orders:app", "-q", "mail:0"),
        ("orders:app", "--processes", "0"),
        ("orders:app", "--beat", "10"),
        ("orders:app", "-c", "0"),
        ("orders:app", "--grace", "-1"),
    ],
)
def test_what_cannot_work_is_refused(cli, folder, url, kept, wrong):
    result = cli("worker", "--url", url, *wrong)

    assert result.exit_code == 2
    assert kept == []


@pytest.mark.process
def test_an_example_is_worked_off(folder, url):
    environment = os.environ | {"DULY_URL": url}
    enqueued = subprocess.run(
        [sys.executable, "examples/shop.py"],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    worked = subprocess.run(
        [DULY, "worker", "examples.shop:app", "--drain"],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )

    app = Duly(url)
    runs = app.runs.list()
    app.close()
    assert enqueued.stdout.count("\n") == 3
    assert worked.returncode == 0, worked.stderr
    assert len(runs) == 6
    assert {(run.record.task, run.state) for run in runs} == {
        ("examples.shop:charge", "succeeded"),
        ("examples.shop:send_receipt", "succeeded"),
    }


@pytest.mark.process
def test_an_application_that_cannot_be_imported_ends_the_worker(folder, url):
    result = subprocess.run(
        [DULY, "worker", "nothing_there:app", "--url", url],
        check=False,
        capture_output=True,
        text=True,
    )

    assert result.returncode == 1
    assert "nothing_there" in result.stderr

"""Events as lines that a newcomer understands."""

import json
import logging

import pytest

import duly
from duly import Retry
from duly.events import WorkerEnded
from duly.observe.json_logs import JsonFormatter
from duly.observe.log_setup import LineFormatter
from duly.observe.logs import log_event

pytestmark = pytest.mark.surface

AS_IT_SAYS = "now queued again or ended as their tasks define"


@pytest.mark.parametrize(
    ("reason", "run_ids", "line"),
    [
        ("stopped", (), "worker w: stopped"),
        (
            "its lease expired",
            ("a",),
            f"worker w: its lease expired; unfinished: 1 run, {AS_IT_SAYS}: a",
        ),
        (
            "gone",
            tuple("abcdef"),
            f"worker w: gone; unfinished: 6 runs, {AS_IT_SAYS}: a, b, c, d, e, …",
        ),
    ],
)
def test_a_worker_that_ends_says_what_it_left(caplog, reason, run_ids, line):
    with caplog.at_level(logging.INFO, logger="duly"):
        log_event(WorkerEnded("w", reason, run_ids))

    assert caplog.messages == [line]


@pytest.mark.stores("sqlite-wal")
def test_a_worker_in_a_program_says_what_is_to_be_known_of_its_store(caplog, app):
    app.store.notices.append("this file may lose commits")

    for _ in range(2):
        app.worker().drain(timeout=20)

    assert caplog.messages == ["this file may lose commits"]


def test_a_run_that_waits_says_so_and_warns_nobody(caplog, app):
    @app.task(name="order")
    def order() -> None:
        duly.wait_for("paid")

    with caplog.at_level(logging.INFO, logger="duly"):
        run = order.enqueue()
        app.worker().drain(timeout=20)

    (record,) = [record for record in caplog.records if run.id in record.getMessage()]
    assert record.levelno == logging.INFO
    assert record.getMessage().endswith("waits in step event:paid")


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("form", [LineFormatter, JsonFormatter])
def test_the_log_has_the_traceback_of_a_run_that_failed_for_good(caplog, app, form):
    @app.task(name="charge", retries=Retry(1, base=0))
    def charge() -> None:
        raise ConnectionError("the bank\ndoes not answer")

    with caplog.at_level(logging.INFO, logger="duly"):
        run = charge.enqueue()
        app.worker().drain(timeout=20)

    retried, failed = [
        form().format(record) for record in caplog.records if run.id in record.getMessage()
    ]
    assert "in charge" not in retried
    assert 'raise ConnectionError("the bank' in failed.replace("\\", "")
    if form is LineFormatter:
        first, *rest = failed.split("\n")
        assert "ERROR" in first
        assert all(line.startswith("    ") for line in rest)
    else:
        assert json.loads(failed)["traceback"].startswith("Traceback")

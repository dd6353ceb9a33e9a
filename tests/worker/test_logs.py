"""Events as lines that a newcomer understands."""

import json
import logging
import os
import re
import threading
import time
from contextlib import suppress
from datetime import datetime

import pytest

import duly
from duly import Retry, RetryAfter
from duly.core.record import ScheduleRecord
from duly.core.states import State
from duly.core.verdict import Finish
from duly.events import LoggedAttempt, SupervisorReady, WorkerEnded
from duly.limits import PAGE
from duly.observe import log_queue
from duly.observe.json_logs import JsonFormatter
from duly.observe.log_queue import LogQueue
from duly.observe.log_setup import LineFormatter
from duly.observe.logs import log_event
from duly.worker import settler
from tests.servers.processes import wait_until

pytestmark = pytest.mark.surface

AS_IT_SAYS = "now queued again or ended as their tasks define"


class UnreadLog:
    """The log of this process, on a pipe that is full until it is read."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writer, b"\n" * 4_096)
        os.set_blocking(writer, True)
        self._reader, self._writer = os.fdopen(reader), os.fdopen(writer, "w")
        self._handler = logging.StreamHandler(self._writer)
        self._logger = logging.getLogger("duly")
        self._logger.addHandler(self._handler)
        self._lines: list[str] = []
        self._reading = threading.Thread(target=lambda: self._lines.extend(self._reader))

    def read(self) -> None:
        """Begin to read."""
        self._reading.start()

    def end(self) -> list[str]:
        """Close the log. Return its lines."""
        self._logger.removeHandler(self._handler)
        self._writer.close()
        self._reading.join()
        self._reader.close()
        return self._lines


@pytest.fixture(autouse=True)
def patient_stop(monkeypatch):
    """Give a busy machine time to write the last lines."""
    monkeypatch.setattr(log_queue, "_STOP_SECONDS", 60.0)


def records_of(caplog, run):
    """Return the records that carry the id of a run."""
    return [record for record in caplog.records if getattr(record, "run_id", None) == run.id]


def test_a_run_that_succeeds_is_one_line(caplog, app):
    @app.task(name="shop:charge")
    def charge() -> int:
        return 7

    with caplog.at_level(logging.INFO, logger="duly"):
        run = charge.enqueue()
        app.worker().drain(timeout=20)

    (record,) = records_of(caplog, run)
    assert record.levelno == logging.INFO
    span = r"\d+(\.\d)? [mµ]?s"
    assert re.fullmatch(
        rf"shop:charge {run.id[:8]}…{run.id[-4:]} succeeded, attempt 1, waited {span}, took {span}",
        record.getMessage(),
    )


@pytest.mark.parametrize("options", [{}, {"transaction": True}])
def test_the_json_line_of_a_run_has_its_wait_and_its_duration(caplog, app, options):
    @app.task(name="shop:charge", queue="mail", **options)
    def charge() -> None:
        time.sleep(0.05)

    with caplog.at_level(logging.INFO, logger="duly"):
        run = charge.enqueue()
        time.sleep(0.3)
        app.worker().drain(timeout=20)

    (record,) = records_of(caplog, run)
    line = json.loads(JsonFormatter().format(record))
    assert (line["run_id"], line["task"], line["queue"]) == (run.id, "shop:charge", "mail")
    assert (line["attempt"], line["outcome"], line["state"]) == (1, "returned", "succeeded")
    assert "error" not in line
    assert 0.3 <= line["waited_seconds"] < 20
    assert 0.05 <= line["duration_seconds"] < 20
    finished_at = run.refresh().record.finished_at / 1e6
    assert abs(datetime.fromisoformat(line["at"]).timestamp() - finished_at) < 20


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0 µs"),
        (340, "340 µs"),
        (12_900, "12 ms"),
        (999_999, "999 ms"),
        (61_250_000, "1 min 1 s"),
    ],
)
def test_the_line_of_a_run_shows_its_durations_as_people_read_them(caplog, microseconds, text):
    with caplog.at_level(logging.INFO, logger="duly"):
        log_event(
            LoggedAttempt(
                *("run", "task", "default", 1, "returned", Finish(State.SUCCEEDED)),
                *(microseconds, microseconds),
            )
        )

    assert caplog.messages[0].endswith(f", waited {text}, took {text}")


def test_lines_are_in_the_order_in_which_runs_ended(caplog, app):
    @app.task(name="shop:charge")
    def charge(number: int) -> None:
        if number % 3 == 0:
            raise ValueError("no")

    with caplog.at_level(logging.INFO, logger="duly"):
        runs = app.enqueue_many(charge.call(number) for number in range(20))
        app.worker(concurrency=1).drain(timeout=20)

    lines = [record.run_id for record in caplog.records if hasattr(record, "run_id")]
    assert lines == [run.id for run in runs]


def test_successes_cost_nothing_where_they_have_no_line(caplog, app, monkeypatch):
    @app.task(name="shop:charge")
    def charge() -> None: ...

    monkeypatch.setattr(settler, "success_summary", None)
    monkeypatch.setattr(LogQueue, "drop", None)
    with caplog.at_level(logging.WARNING, logger="duly"):
        run = charge.enqueue()
        app.worker().drain(timeout=20)

    assert run.refresh().state == "succeeded"
    assert caplog.records == []


def test_a_log_that_is_not_read_stops_no_recording(app, monkeypatch, caplog):
    @app.task(name="shop:charge")
    def charge(number: int) -> None: ...

    def complete(count: int) -> None:
        runs = app.enqueue_many(charge.call(number) for number in range(count))
        wait_until(
            lambda: {run.refresh().state for run in runs} == {"succeeded"},
            seconds=40,
            what="all runs are recorded",
        )

    monkeypatch.setattr(log_queue, "LOG_QUEUE_LINES", 20)
    log = UnreadLog()
    with caplog.at_level(logging.INFO, logger="duly"), app.worker():
        try:
            complete(100)  # They may be recorded at once, and then all have room.
            complete(100)
            wait_until(lambda: app.bus.log._dropped > 0, seconds=20, what="lines are dropped")
        finally:
            log.read()
    lines = log.end()

    succeeded = [line for line in lines if " succeeded, attempt 1, " in line]
    dropped = [line for line in lines if "lines of finished runs were dropped" in line]
    assert 0 < len(succeeded) < 200
    assert len(succeeded) + sum(int(line.split()[0]) for line in dropped) == 200


def test_the_line_of_a_run_that_failed_names_the_run_and_the_error(caplog, app):
    @app.task(name="shop:charge")
    def charge() -> None:
        raise ValueError("no\nERROR forged")

    with caplog.at_level(logging.INFO, logger="duly"):
        run = charge.enqueue()
        app.worker().drain(timeout=20)

    (record,) = records_of(caplog, run)
    assert record.getMessage().startswith(f"shop:charge {run.id} failed (raised), attempt 1, ")
    assert record.getMessage().endswith(r": ValueError: no\nERROR forged")


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
    app.task(name="order")(lambda: None)
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

    (record,) = records_of(caplog, run)
    assert record.levelno == logging.INFO
    assert record.getMessage().endswith("waits in step event:paid")


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("form", [LineFormatter, JsonFormatter])
def test_the_log_has_the_traceback_of_every_attempt_that_failed(caplog, app, form):
    @app.task(name="charge", retries=Retry(1, base=0))
    def charge() -> None:
        raise ConnectionError("the bank\ndoes not answer")

    with caplog.at_level(logging.INFO, logger="duly"):
        run = charge.enqueue()
        app.worker().drain(timeout=20)

    lines = [form().format(record) for record in records_of(caplog, run)]
    for line, level in zip(lines, ("WARNING", "ERROR"), strict=True):
        assert 'raise ConnectionError("the bank' in line.replace("\\", "")
        if form is LineFormatter:
            first, *rest = line.split("\n")
            assert level in first
            assert all(line.startswith("    ") for line in rest)
        else:
            assert "\n" not in line
            assert json.loads(line)["traceback"].startswith("Traceback")


def test_the_time_of_a_text_line_is_in_utc_as_in_json(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    record = logging.makeLogRecord(
        {"msg": "hello", "levelname": "INFO", "created": 1.25, "msecs": 250}
    )

    try:
        line = LineFormatter().format(record)
    finally:
        monkeypatch.undo()
        time.tzset()

    assert line == "1970-01-01T00:00:01.250Z INFO hello"
    assert json.loads(JsonFormatter().format(record))["at"] == "1970-01-01T00:00:01.250Z"


@pytest.mark.stores("sqlite-wal")
def test_failures_that_another_logger_reports_have_no_second_traceback(caplog, app):
    @app.task(name="charge")
    def charge() -> None:
        raise ConnectionError

    app.bus.log = LogQueue(failures=logging.INFO)
    with caplog.at_level(logging.INFO, logger="duly"):
        run = charge.enqueue()
        app.worker().drain(timeout=20)

    (record,) = records_of(caplog, run)
    assert "Traceback" not in LineFormatter().format(record)


class BankIsBusy(RetryAfter):
    """A reason of the application's own to try again."""


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("planned", [RetryAfter, BankIsBusy])
def test_the_log_has_a_traceback_of_retry_after_only_when_no_retry_is_left(caplog, app, planned):
    @app.task(name="poll", retries=1)
    def poll() -> None:
        raise planned(0, "the bank is busy")

    with caplog.at_level(logging.INFO, logger="duly"):
        run = poll.enqueue()
        app.worker().drain(timeout=20)

    first, last = (LineFormatter().format(record) for record in records_of(caplog, run))
    assert first.endswith(f"{planned.__name__}: the bank is busy")
    assert "Traceback" not in first
    assert "Traceback" in last
    assert all("Traceback" in attempt.traceback for attempt in run.attempts())


SCHEDULE = ScheduleRecord(
    *("nightly", 1, "code", "shop.py", "report", "default", "thread", 0, "[[], {}]", None),
    *("{}", "{}", "active", None, 7_200_000_000, None, 0, None, 0, 0),
)


def ready(**changes):
    return SupervisorReady(
        *("shop:app", ("charge", "report"), "all", (SCHEDULE,), 0, 2, 10, 200),
    )._replace(**changes)


def test_a_supervisor_that_is_ready_lists_tasks_queues_concurrency_and_schedules(caplog):
    with caplog.at_level(logging.INFO, logger="duly"):
        log_event(ready())

    assert caplog.messages == [
        "2 tasks: charge, report",
        "queues: all; concurrency: 2 processes, each with 10 threads and 200 coroutines",
        "1 schedule, next: nightly at 1970-01-01 02:00:00 UTC (in 2 h)",
    ]
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert lines[0]["tasks"] == ["charge", "report"]
    assert lines[1]["processes"] == 2
    assert lines[2]["schedules"] == {"nightly": "1970-01-01T02:00:00.000000Z"}


def test_a_page_of_schedules_may_not_be_all_of_them(caplog):
    with caplog.at_level(logging.INFO, logger="duly"):
        log_event(ready(schedules=(SCHEDULE,) * PAGE))

    assert caplog.messages[-1].startswith("200 or more schedules, next: nightly at ")


def test_a_supervisor_without_tasks_warns(caplog):
    with caplog.at_level(logging.WARNING, logger="duly"):
        log_event(ready(tasks=()))

    (message,) = caplog.messages
    assert message.startswith("no task is registered: import the modules that define your tasks")


def test_a_hostile_name_cannot_end_the_line_that_lists_it(caplog):
    with caplog.at_level(logging.INFO, logger="duly"):
        log_event(ready(tasks=("a\nERROR forged",), queues="a\nb", app="a\nb"))

    assert not any("\n" in message for message in caplog.messages)

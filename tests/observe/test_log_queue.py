"""The queue between the engine and the log."""

import logging
import threading
from collections.abc import Iterator

import pytest

from duly.core.record import Claim
from duly.core.states import State
from duly.core.verdict import Finish, Requeue
from duly.events import AttemptEnded, LoggedAttempt, StoreRecovered
from duly.observe import log_queue
from duly.observe.log_queue import LogQueue

ROOM = 10


class StuckLog(logging.Handler):
    """Keeps its writers waiting until it is read, and notes what they wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing, self.is_read = threading.Event(), threading.Event()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.is_writing.set()
        assert self.is_read.wait(60)
        self.messages.append(record.getMessage())


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[StuckLog]:
    """The handler of the logger duly."""
    monkeypatch.setattr(log_queue, "LOG_QUEUE_LINES", ROOM)
    monkeypatch.setattr(log_queue, "_ENTRIES", ROOM + 2)
    monkeypatch.setattr(log_queue, "_TURN_SECONDS", 0.0)
    handler, logger = StuckLog(), logging.getLogger("duly")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    handler.is_read.set()
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture
def queue(stuck: StuckLog) -> Iterator[LogQueue]:
    """A queue that is written to that log."""
    queue = LogQueue()
    queue.start("worker")
    yield queue
    stuck.is_read.set()
    assert queue.stop("worker")


def success(number: int) -> LoggedAttempt:
    return LoggedAttempt(
        *(f"run-{number}", f"task-{number}", "default", 1),
        *("returned", Finish(State.SUCCEEDED), 5_000, 0),
    )


def ended(task: str, outcome: str, verdict: Finish | Requeue) -> AttemptEnded:
    claim = Claim(
        *("run-1", 1, task, "default", "thread", 0, 0, 1, 0, 0, 1, False, None),
        arguments="x" * 100_000,
    )
    return AttemptEnded(claim, outcome, verdict, 5_000, None)


def add_until_full(queue: LogQueue, stuck: StuckLog) -> int:
    """Add successes while there is room. Return how many were added."""
    queue.add(success(0))
    assert stuck.is_writing.wait(20)
    added = 1
    while queue.has_room():
        queue.add(success(added))
        added += 1
    return added


def tasks(stuck: StuckLog) -> list[str]:
    return [message.split()[0] for message in stuck.messages]


def test_a_log_that_is_not_read_keeps_no_emitter_waiting(queue, stuck):
    added = add_until_full(queue, stuck)

    assert added == ROOM + 1
    assert stuck.messages == []


def test_lines_without_room_are_counted_and_reported_where_they_are_missing(queue, stuck):
    added = add_until_full(queue, stuck)

    queue.drop(7)
    assert not queue.has_room()
    stuck.is_read.set()
    assert queue.stop("worker")

    lines = [*(f"task-{number}" for number in range(added)), "7"]
    assert tasks(stuck) == lines
    assert stuck.messages[-1].startswith("7 lines of finished runs were dropped")
    assert queue.has_room()


def test_failures_find_room_after_successes_found_none(queue, stuck):
    added = add_until_full(queue, stuck)
    failed = Finish(State.FAILED, "raised")

    queue.add(ended("paid", "returned", Finish(State.SUCCEEDED)))
    for number in range(3):
        queue.add(ended(f"failed-{number}", "raised", failed))
    stuck.is_read.set()
    assert queue.stop("worker")

    assert tasks(stuck)[added:] == ["failed-0", "failed-1", "2"]


def test_a_stop_does_not_wait_long_for_a_log_that_is_not_read(queue, stuck, monkeypatch):
    monkeypatch.setattr(log_queue, "_STOP_SECONDS", 0.05)
    queue.add(success(1))

    assert not queue.stop("worker")

    monkeypatch.undo()
    stuck.is_read.set()
    assert queue.stop("worker")
    assert tasks(stuck) == ["task-1"]


def test_what_is_left_is_written_when_the_last_owner_stops(queue, stuck, monkeypatch):
    stuck.is_read.set()
    monkeypatch.setattr(log_queue, "_TURN_SECONDS", 60.0)
    queue.start("another")
    numbers = range(ROOM)

    assert queue.stop("another")
    assert stuck.messages == []
    for number in numbers:
        queue.add(success(number))
    assert queue.stop("worker")

    assert tasks(stuck) == [f"task-{number}" for number in numbers]


def test_a_process_without_workers_writes_at_once(queue, stuck):
    stuck.is_read.set()
    assert queue.stop("worker")

    queue.add(StoreRecovered("claim"))

    assert stuck.messages == ["claim works again"]


def test_ends_below_the_level_take_no_room(queue, stuck):
    stuck.is_read.set()
    logging.getLogger("duly").setLevel(logging.WARNING)

    for _ in range(2 * ROOM):
        queue.add(ended("paid", "returned", Finish(State.SUCCEEDED)))
        queue.add(ended("later", "snoozed", Requeue(1.0, 1, 0, 0, "thread")))
    assert not queue.wants_successes()
    assert queue.stop("worker")

    assert stuck.messages == []


def test_the_queue_keeps_no_arguments_and_no_results():
    event = ended("task", "returned", Finish(State.SUCCEEDED, result="y" * 100_000))

    assert len(str(event.summary())) < 1_000


def test_a_filter_that_raises_ends_nothing(queue, stuck, monkeypatch):
    stuck.is_read.set()
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)

    def raise_for_the_first(record):
        if "task-0" in record.getMessage():
            raise ValueError("from a filter")
        return True

    logger = logging.getLogger("duly")
    logger.addFilter(raise_for_the_first)
    try:
        queue.add(success(0))
        queue.add(success(1))
        assert queue.stop("worker")
    finally:
        logger.removeFilter(raise_for_the_first)

    assert [str(report.exc_value) for report in reported] == ["from a filter"]
    assert tasks(stuck) == ["task-1"]

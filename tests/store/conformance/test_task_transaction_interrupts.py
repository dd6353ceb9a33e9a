"""Exceptions from outside, such as timeouts, while a task uses its transaction."""

import threading
from itertools import count

import pytest

from duly.interrupts import allow_interrupts, disallow_interrupts
from duly.store.ops.steps import EndStep
from tests.store.conformance.verbs import enqueue_and_claim, enqueue_one
from tests.strikes import Strike, Struck

FILES = tuple(
    f"duly/store/{name}.py"
    for name in (
        "task_connection",
        "task_transaction",
        "sqlite/task_connection",
        "sqlite/task_transaction",
        "postgres/task_connection",
        "postgres/task_transaction",
    )
)


class Timeout(Strike):
    """Strikes as the timeout of an attempt does: not while the thread masks interrupts."""

    def __init__(self, number: int) -> None:
        super().__init__(number, *FILES)
        self._mask = allow_interrupts()
        self._mask.thrown = Struck

    def _come_by(self, code, offset):
        if self._mask._depth == 0:
            super()._come_by(code, offset)


def use(section, held):
    """Use a transaction in each way that a task can use it in its own thread."""
    connection = section.connection
    connection.execute("CREATE TABLE entries (number integer)")
    cursor = connection.cursor()
    cursor.executemany("INSERT INTO entries VALUES (1)", [()] * 2)
    cursor.execute("SELECT number FROM entries")
    assert [cursor.fetchone(), *cursor.fetchmany(1), *cursor.fetchall()] == [(1,), (1,)]
    step = EndStep(held.run_id, held.claim_number, "one", "1")
    assert section.record(step)
    assert section.record_and_commit(step._replace(name="two"))


# An exception in a destructor can only be reported.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("worker")
def test_a_task_that_is_interrupted_at_any_instruction_leaves_nothing_locked(store, tables):
    held = enqueue_and_claim(store)
    for number in count(1):
        section = store.task_transaction()
        timeout = Timeout(number)
        try:
            timeout.call(lambda section=section: use(section, held))
        except Exception:
            # The driver of PostgreSQL raises its own error in place of the timeout.
            if not timeout.has_struck:
                raise
        finally:
            disallow_interrupts()
        section.rollback()

        timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
        assert [each for each in timers if not each.finished.is_set()] == []
        assert store.can_write_now()
        tables.execute("DROP TABLE IF EXISTS entries")
        if not timeout.has_struck:
            break

    assert number > 20
    assert enqueue_one(store)

"""A forked child keeps the inherited store without using it, and opens its own."""

import os
import select
import signal
import threading
from contextlib import contextmanager

import pytest

from duly import clock
from duly.clock import new_id
from tests.store.conformance.verbs import TIMEOUT, enqueue_one, listed_ids, order, state_of

pytestmark = pytest.mark.process


class Child:
    """A forked process that carries out one action and reports the result."""

    def __init__(self, action):
        self._reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                report = str(action())
            except BaseException as error:  # noqa: BLE001 - the parent compares it
                report = repr(error)
            os.write(writer, report.encode())
            os._exit(0)
        os.close(writer)

    def report(self, seconds=TIMEOUT):
        """Wait for the child to end; return what it reported."""
        readable, _, _ = select.select([self._reader], [], [], seconds)
        assert readable, "the child is stuck"
        return os.read(self._reader, 10_000).decode()

    def end(self):
        """Kill the process and release its resources."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._reader)


@contextmanager
def forked(action):
    child = Child(action)
    try:
        yield child
    finally:
        child.end()


def test_parent_and_child_both_continue_after_a_fork(store):
    before = enqueue_one(store)

    with forked(lambda: enqueue_one(store)) as child:
        theirs = child.report()
    mine = enqueue_one(store)

    assert set(listed_ids(store)) == {before, theirs, mine}


def test_a_child_reads_what_its_parent_wrote(store):
    run_id = enqueue_one(store)

    with forked(lambda: state_of(store, run_id)) as child:
        assert child.report() == "queued"


def test_children_forked_while_other_threads_write_can_write(store):
    stop = threading.Event()
    written, theirs = [], []

    def write_without_pause():
        while not stop.is_set():
            written.append(enqueue_one(store))

    thread = threading.Thread(target=write_without_pause)
    thread.start()
    try:
        for _ in range(8):
            op = order()
            with forked(lambda op=op: store.do(op).run_id) as child:
                assert child.report() == op.run_id
            theirs.append(op.run_id)
    finally:
        stop.set()
        thread.join()

    assert set(listed_ids(store, limit=100_000)) == {*written, *theirs}


def test_a_child_forked_while_an_id_is_drawn_draws_its_own_id():
    with clock.run_ids._lock, forked(new_id) as child:
        assert len(child.report(seconds=1.0)) == 36


def test_a_child_that_closes_the_store_does_not_close_that_of_its_parent(store):
    with forked(store.close) as child:
        assert child.report() == "None"

    assert enqueue_one(store)


def test_a_grandchild_can_write_too(store):
    def fork_again():
        enqueue_one(store)
        grandchild = Child(lambda: enqueue_one(store))
        return grandchild.report()

    with forked(fork_again) as child:
        youngest = child.report()

    assert youngest in listed_ids(store)
    assert len(listed_ids(store)) == 2

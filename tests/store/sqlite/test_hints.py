"""Listening for hints on SQLite, where that is a socket and a look at the file now and then.

On PostgreSQL the server brings them, over a connection of the listener's own.
"""

import errno
import os
import socket
import threading

import pytest

from duly.store.sqlite import wakeup
from tests.store.conformance.verbs import enqueue_one, listed_ids
from tests.store.sqlite.verbs import TIMEOUT

pytestmark = pytest.mark.stores("sqlite-wal")  # A socket beside the file: whatever its journal.


@pytest.mark.timeout(20)
def test_who_stops_listening_need_not_wait_for_the_next_look(store, monkeypatch):
    is_waiting = threading.Event()

    class Receiver(socket.socket):
        def recv(self, size: int) -> bytes:
            is_waiting.set()
            return super().recv(size)

    monkeypatch.setattr(socket, "socket", Receiver)
    monkeypatch.setattr(wakeup, "_LOOK_SECONDS", 3600.0)
    heard: list[bool] = []
    end = store.listen(lambda: heard.append(True))
    assert is_waiting.wait(TIMEOUT)

    end()

    assert heard == []


def test_a_hint_that_cannot_be_sent_fails_no_write(store, monkeypatch):
    end = store.listen(lambda: None)
    try:
        with monkeypatch.context() as without_descriptors:
            error = OSError(errno.EMFILE, "too many open files")
            without_descriptors.setattr(os, "listdir", raising(error))
            run_id = enqueue_one(store)
    finally:
        end()

    assert listed_ids(store) == [run_id]


def raising(error):
    """Return a function that raises an error."""

    def fail(*_args):
        raise error

    return fail

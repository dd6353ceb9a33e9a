"""Listening for hints on SQLite: by a socket, and by a look at the file from time to time.

On PostgreSQL the server sends the hints over a connection of the listener.
"""

import errno
import os
import socket
import threading

import pytest

from duly.store.sqlite import wakeup
from tests.store.conformance.verbs import enqueue_one, listed_ids
from tests.store.sqlite.verbs import TIMEOUT

# The socket is next to the file, so the journal mode does not matter.
pytestmark = pytest.mark.stores("sqlite-wal")


@pytest.mark.timeout(20)
def test_a_listener_can_stop_without_waiting_for_its_next_look(store, monkeypatch):
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


def test_a_hint_that_cannot_be_sent_does_not_make_the_write_fail(store, monkeypatch):
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

"""Wake-up hints across processes: NOTIFY after each commit, many commits to one NOTIFY.

Commits that notify wait for one another, in all processes, so the NOTIFY goes out apart, and
behind. Only a lone enqueue after a moment of quiet carries its own: it wakes an idle worker sooner.

A hint may be lost; polling is the backstop. Behind a pooler nobody can LISTEN, and polling is all
there is between processes.
"""

import contextlib
import math
import os
import select
import threading
from collections.abc import Callable

import psycopg
from psycopg import sql

from duly.clock import monotonic, new_id
from duly.errors import StoreError
from duly.store.postgres.address import Address
from duly.store.postgres.connection import HINTS, Session, connect
from duly.store.postgres.line import Line

_BETWEEN_SECONDS = 0.002
"""The first hint goes out at once; while more come in, one in this time."""
_QUIET_SECONDS = 0.01
_APART_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_LOOK_SECONDS = 5.0
"""How often a listener looks whether its server is still the primary."""


_NOTIFY = "SELECT pg_notify(%(channel)s, %(sender)s)"


def notify(session: Session, sender: str) -> None:
    """Hint to all who listen, and say who does."""
    session.execute_alone(_NOTIFY, {"channel": session.channel(), "sender": sender})


class Hints:
    """Sends and receives hints for one store."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._here: list[Callable[[], None]] = []
        self._listeners: list[_Listener] = []
        self.sender = new_id()
        """Tells the listeners of this process which hints are its own."""
        self._notifier = _Notifier(address, self.sender)
        self._sent_at = -math.inf
        self._rides_again_at = -math.inf

    def send(self) -> None:
        """Hint to every listener, in this process and in others."""
        self.send_here()
        self._notifier.poke()

    def send_here(self) -> None:
        """Hint to the listeners in this process: the others have been told."""
        self._sent_at = monotonic()
        for woken in tuple(self._here):
            woken()

    def may_ride(self) -> bool:
        """Say whether a commit may carry its own hint: not when others have just been sent."""
        now = monotonic()
        return now - self._sent_at > _QUIET_SECONDS and now >= self._rides_again_at

    def stop_riding(self) -> None:
        """Let no commit carry a hint for a while: it was refused, or had to wait for others."""
        self._rides_again_at = monotonic() + _APART_SECONDS

    def listen(self, woken: Callable[[], None]) -> Callable[[], None]:
        """Call `woken` at every hint until the returned function is called."""
        listener = _Listener(self._address, woken, self.sender)
        self._here.append(woken)
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
                self._here.remove(woken)
                listener.close()

        return end

    def are_heard(self) -> bool:
        """Say whether every listener listens."""
        return all(listener.is_listening for listener in tuple(self._listeners))

    def close(self) -> None:
        """End all threads."""
        while self._listeners:
            self._listeners.pop().close()
        self._notifier.close()


class _Notifier:
    """Says NOTIFY for everybody in this process, off the path of those who write."""

    def __init__(self, address: Address, sender: str) -> None:
        self._line = Line(address, HINTS)
        self._sender = sender
        self._poked = threading.Event()
        self._has_hint = False
        self._ending = threading.Event()
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None

    def poke(self) -> None:
        """Have a hint sent soon; cheap, and never waits."""
        if self._thread is None:
            self._start()
        self._has_hint = True
        if not self._poked.is_set():
            self._poked.set()

    def close(self) -> None:
        """End the thread, once a hint that was not sent yet has been, if the server answers."""
        self._ending.set()
        self._poked.set()
        if self._thread is not None:
            self._thread.join()
        self._line.close()

    def _start(self) -> None:
        with self._mutex:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="duly-notifier", daemon=True)
                thread.start()
                self._thread = thread

    def _serve(self) -> None:
        while True:
            self._poked.wait()
            if not self._has_hint:
                return
            # In this order: a poke in between is a hint more, not one less.
            self._poked.clear()
            self._has_hint = False
            if self._ending.is_set():
                self._poked.set()
            try:
                self._line.run(lambda session, _lost: notify(session, self._sender))
            except StoreError:
                self._ending.wait(_LONGEST_PAUSE_SECONDS)
            else:
                self._ending.wait(_BETWEEN_SECONDS)


class _Listener:
    """Waits for hints of other processes on a connection of its own, at no cost while idle."""

    def __init__(self, address: Address, woken: Callable[[], None], sender: str) -> None:
        self._address = address
        self._woken = woken
        self._own = sender.encode()
        self.is_listening = False
        self._ending = threading.Event()
        self._end_reader, self._end_writer = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="duly-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread at once."""
        self._ending.set()
        os.write(self._end_writer, b"!")
        self._thread.join()
        os.close(self._end_reader)
        os.close(self._end_writer)

    def _serve(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._ending.is_set():
            with contextlib.suppress(StoreError, psycopg.Error):
                session = connect(self._address, HINTS)
                with contextlib.closing(session):
                    if session.pooled:
                        return
                    channel = sql.Identifier(session.channel())
                    session.execute(sql.SQL("LISTEN {}").format(channel))
                    pause = _FIRST_PAUSE_SECONDS
                    self.is_listening = True
                    # What was written while nobody listened gave no hint.
                    self._woken()
                    self._receive(session)
            self.is_listening = False
            self._ending.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _receive(self, session: Session) -> None:
        readiness = select.poll()
        readiness.register(session.fileno(), select.POLLIN)
        readiness.register(self._end_reader, select.POLLIN)
        while True:
            readiness.poll(_LOOK_SECONDS * 1000)
            if self._ending.is_set() or not session.is_alive():
                return
            session.pgconn.consume_input()
            from_others = False
            while (hint := session.pgconn.notifies()) is not None:
                from_others |= hint.extra != self._own
            if from_others:
                self._woken()

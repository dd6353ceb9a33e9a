"""Wake-up hints across processes: NOTIFY after each commit, many commits to one NOTIFY.

Commits that notify wait for one another, in all processes. So a separate transaction sends the
NOTIFY after the commit. Only a lone enqueue after a quiet moment carries its own hint, because it
wakes an idle worker sooner.

A hint may be lost, since workers also poll. With a pooler no process can LISTEN, and processes find
each other's runs only by polling.
"""

import contextlib
import math
import os
import select
import threading
from collections.abc import Callable
from typing import NamedTuple

import psycopg
from psycopg import sql

from duly.clock import monotonic, new_id
from duly.errors import StoreError
from duly.store.hints import (
    MOST_PLACES,
    ClaimNotice,
    Hint,
    HintCallback,
    HintPlace,
    ReadyHints,
    WakeCallback,
    decode,
    encode,
    merged,
)
from duly.store.postgres.address import Address
from duly.store.postgres.connection import PostgresSession, connect

_BETWEEN_SECONDS = 0.005
"""The first hint is sent at once. While more hints arrive, one is sent per this interval."""
_QUIET_SECONDS = 0.01
_SLOW_SECONDS = 0.005
"""Commits that notify wait for one another, in all processes. A slower commit may have waited."""
_APART_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_LOOK_SECONDS = 5.0
"""How often a listener checks whether its server is still the primary."""


_NOTIFY = "SELECT pg_catalog.pg_notify(%(channel)s, %(payload)s)"
# Other writes of this process wait meanwhile. A crash of the server may lose a notification.
_NOTIFY_SOON = f"""{_NOTIFY},
       pg_catalog.set_config('synchronous_commit', 'off', true),
       pg_catalog.set_config('lock_timeout', '20ms', true)
"""
_MOST_SLOWER = 3
_SMOOTHING = 0.2
_COMPARED_SECONDS = 60.0


def notify(session: PostgresSession, payload: str) -> None:
    """Send a notification to all listeners, when the open transaction commits."""
    session.execute_alone(_NOTIFY, {"channel": session.channel(), "payload": payload})


def notify_soon(session: PostgresSession, payload: str) -> None:
    """Send a notification in a transaction of its own, which hardly waits for other commits."""
    session.execute_alone(_NOTIFY_SOON, {"channel": session.channel(), "payload": payload})


class _HintCallbacks(NamedTuple):
    """One listener of this process: the functions to call for its messages."""

    woken: WakeCallback
    hinted: HintCallback | None

    def hear(self, said: ReadyHints | ClaimNotice) -> None:
        """Call the function that fits the message. A message without a place wakes all."""
        if isinstance(said, ClaimNotice):
            if self.hinted is not None:
                self.hinted(said)
        elif said and self.hinted is not None:
            for hint in said:
                self.hinted(hint)
        else:
            self.woken()


class PostgresHints:
    """Sends and receives hints for one store."""

    def __init__(self, address: Address, notify: Callable[[str], None]) -> None:
        self._address = address
        self._here: list[_HintCallbacks] = []
        self._listeners: list[_HintListener] = []
        self.sender = new_id()
        """Identifies the hints of this process, so that its own listeners ignore them."""
        self._notifier = _HintNotifier(notify, self.sender)
        self._sent_at = -math.inf
        self._rides_again_at = -math.inf
        self._seconds_riding = 0.0
        """The mean duration of recent inserts that carried their hint."""
        self._seconds_alone = 0.0
        self._compared_at = -math.inf
        self._must_compare = False

    def send(self, hints: ReadyHints = ()) -> None:
        """Send hints to the listeners of all processes."""
        self._notifier.poke(hints)
        self.send_here(hints)

    def send_here(self, hints: ReadyHints = ()) -> None:
        """Send hints to the listeners of this process, after the other processes got theirs."""
        self._sent_at = monotonic()
        if self._here:
            near = [hint._replace(is_near=True) for hint in hints]
            for ears in tuple(self._here):
                ears.hear(near)

    def may_piggyback(self) -> bool:
        """Return whether a commit may carry its own hint: not just after other hints."""
        now = monotonic()
        is_quiet = now - self._sent_at > _QUIET_SECONDS
        return is_quiet and now >= self._rides_again_at and not self._must_compare

    def note_piggybacked(self, seconds: float) -> None:
        """Record how long an insert with a hint took. It may have waited for other commits."""
        self._seconds_riding += _SMOOTHING * (seconds - self._seconds_riding)
        if self._seconds_riding <= max(_SLOW_SECONDS, _MOST_SLOWER * self._seconds_alone):
            return
        self._seconds_riding = 0.0
        if monotonic() - self._compared_at < _COMPARED_SECONDS:
            self.stop_piggybacking()
        else:
            # Perhaps all commits are slow at present, so the next one carries no hint.
            self._must_compare = True

    def note_plain_insert(self, seconds: float) -> None:
        """Record how long an insert without a hint took, for comparison."""
        is_first = monotonic() - self._compared_at >= _COMPARED_SECONDS
        change = seconds - self._seconds_alone
        self._seconds_alone += change if is_first else _SMOOTHING * change
        self._compared_at = monotonic()
        self._must_compare = False

    def stop_piggybacking(self) -> None:
        """Send no hints with commits for a while: one was refused, or waited for other commits."""
        self._rides_again_at = monotonic() + _APART_SECONDS

    def listen(self, woken: WakeCallback, hinted: HintCallback | None = None) -> Callable[[], None]:
        """Call `woken` at every hint until the returned function is called.

        Messages that name runs go to `hinted` instead, if it is given.
        """
        ears = _HintCallbacks(woken, hinted)
        listener = _HintListener(self._address, ears, self.sender)
        self._here.append(ears)
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
                self._here.remove(ears)
                listener.close()

        return end

    def are_heard(self) -> bool:
        """Return whether every listener has a connection that listens."""
        return all(listener.is_listening for listener in tuple(self._listeners))

    def close(self) -> None:
        """End all threads."""
        while self._listeners:
            self._listeners.pop().close()
        self._notifier.close()


class _HintNotifier:
    """Sends NOTIFY for the whole process in its own thread, so that writers do not wait for it."""

    def __init__(self, notify: Callable[[str], None], sender: str) -> None:
        self._notify = notify
        self._sender = sender
        self._poked = threading.Event()
        self._hints: dict[HintPlace, Hint] = {}
        self._says_anything = False
        self._ending = threading.Event()
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None

    def poke(self, hints: ReadyHints) -> None:
        """Queue hints for sending soon. This call is cheap and never blocks."""
        if self._thread is None:
            try:
                self._start()
            except RuntimeError:
                # This process can start no more threads. A hint must never fail a write.
                return
        with self._mutex:
            self._says_anything |= not hints
            for hint in hints:
                known = self._hints.get(hint.place)
                self._hints[hint.place] = hint if known is None else merged(known, hint)
        if not self._poked.is_set():
            self._poked.set()

    def close(self) -> None:
        """End the thread. It first sends the queued hints, if the server answers."""
        self._ending.set()
        self._poked.set()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        with self._mutex:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="duly-notifier", daemon=True)
                thread.start()
                self._thread = thread

    def _serve(self) -> None:
        while True:
            self._poked.wait()
            # Clear before taking: a poke in between adds a hint and loses none.
            self._poked.clear()
            payload = self._take()
            if self._ending.is_set():
                self._poked.set()
            if payload is None:
                if self._ending.is_set():
                    return
                continue
            try:
                self._notify(payload)
            except StoreError:
                if self._ending.wait(_LONGEST_PAUSE_SECONDS):
                    # Perhaps the connection was just being closed for all other writes.
                    with contextlib.suppress(StoreError):
                        self._notify(payload)
            else:
                self._ending.wait(_BETWEEN_SECONDS)

    def _take(self) -> str | None:
        """Return the message to send, or None if there are no hints."""
        with self._mutex:
            hints, says_anything = list(self._hints.values()), self._says_anything
            self._hints.clear()
            self._says_anything = False
        if not hints and not says_anything:
            return None
        is_short = not says_anything and len(hints) <= MOST_PLACES
        return encode(hints if is_short else (), self._sender)


class _HintListener:
    """Waits for hints of other processes on its own connection, at no cost while idle."""

    def __init__(self, address: Address, ears: _HintCallbacks, sender: str) -> None:
        self._address = address
        self._ears = ears
        self._own = sender
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
        try:
            self._listen()
        finally:
            self.is_listening = False

    def _listen(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._ending.is_set():
            with contextlib.suppress(StoreError, psycopg.Error):
                session = connect(self._address, {})
                with contextlib.closing(session):
                    if session.pooled:
                        return
                    channel = sql.Identifier(session.channel())
                    session.execute(sql.SQL("LISTEN {}").format(channel))
                    pause = _FIRST_PAUSE_SECONDS
                    self.is_listening = True
                    # Writes before the LISTEN sent no hint to this listener.
                    self._ears.woken()
                    self._receive(session)
            self.is_listening = False
            self._ending.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _receive(self, session: PostgresSession) -> None:
        readiness = select.poll()
        readiness.register(session.fileno(), select.POLLIN)
        readiness.register(self._end_reader, select.POLLIN)
        while True:
            readiness.poll(_LOOK_SECONDS * 1000)
            if self._ending.is_set() or not session.is_alive():
                return
            session.pgconn.consume_input()
            is_woken = False
            while (notification := session.pgconn.notifies()) is not None:
                message = decode(notification.extra.decode(errors="replace"))
                if message is None or (not message.said and message.sender != self._own):
                    # Several messages without a place need only one call.
                    is_woken = True
                elif message.sender != self._own:
                    self._ears.hear(message.said)
            if is_woken:
                self._ears.woken()

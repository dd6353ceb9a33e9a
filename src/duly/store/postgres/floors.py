"""Keeps floors for the index of ready runs, so that claims need not scan all of it.

While a transaction holds a snapshot, vacuum cannot remove the index entries of runs that have
ended, and claims would scan all of these entries. A floor is the position where a claim starts. One
process at a time looks at the whole index and writes the floors. A run that becomes ready below a
floor waits for the next look. Floors that are not renewed expire, so they can delay a run but not
lose it.
"""

import contextlib
import threading

import psycopg

from duly.clock import MICROSECONDS
from duly.errors import StoreError
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.pool import ConnectionPool
from duly.store.postgres.wakeup import PostgresHints
from duly.store.statements import load

SQL = load("postgres", "floors")

SLOW_SECONDS = 0.005
"""Floors are used while a look at the whole index takes longer than this."""
LOOK_SECONDS = 5.0
LOOK_SECONDS_WITHOUT_HINTS = 1.0
"""The time between two looks. A run below a floor waits for up to this long."""
_DUE_SHARE = 0.8
_ASK_SHARE = 0.2
"""The share of that time after which a look is due, and the share between two checks for it."""
_INCOMPLETE_SECONDS = 1.0
"""The time until the next look if a search was slow despite the floors."""
_IN_FORCE_SECONDS = 15.0
_LONGEST_LOOK_SECONDS = 4.0
MARGIN_SECONDS = 1.0
"""Floors stay this far before the time of the look, for transactions that commit late."""
MOST_FLOORS = 500


class Floors:
    """Keeps the floors of one store up to date, in a thread that lives only while they are used."""

    def __init__(self, sessions: ConnectionPool, hints: PostgresHints) -> None:
        self._sessions = sessions
        self._hints = hints
        self._mutex = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._session: PostgresSession | None = None
        self._is_incomplete = False
        """True if claims still scan many dead entries despite the floors in force."""

    def note_cost(self, took: int, look_age: int | None) -> None:
        """Start the thread if a search for ready runs was slow, or if floors are in force.

        Both parameters are in microseconds. `look_age` is None if no floors are in force.
        """
        is_slow = took > SLOW_SECONDS * MICROSECONDS
        self._is_incomplete = is_slow and look_age is not None
        if look_age is None and not is_slow:
            return
        with self._mutex:
            is_serving = self._thread is not None and self._thread.is_alive()
            if not is_serving and not self._ending.is_set():
                self._thread = threading.Thread(target=self._serve, name="duly-floors", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread. Cancel a look that is in progress."""
        with self._mutex:
            self._ending.set()
            thread, session = self._thread, self._session
        if session is not None:
            with contextlib.suppress(psycopg.Error):
                session.cancel_safe(timeout=1.0)
        if thread is not None:
            thread.join()

    def _serve(self) -> None:
        while not self._ending.is_set():
            every = LOOK_SECONDS if self._hints.are_heard() else LOOK_SECONDS_WITHOUT_HINTS
            due = min(every * _DUE_SHARE, _INCOMPLETE_SECONDS if self._is_incomplete else every)
            try:
                if not self.look(due):
                    return
            except (StoreError, psycopg.Error):
                # The next search for runs shows whether floors are still needed.
                self._ending.wait(every)
                return
            self._ending.wait(every * _ASK_SHARE)

    def look(self, after_seconds: float) -> bool:
        """Look at the index if the newest look is older than this and no other process is looking.

        Return whether floors are in force.
        """
        with self._sessions.connection() as session:
            with self._mutex:
                self._session = None if self._ending.is_set() else session
            try:
                return self._session is not None and self._look(session, after_seconds)
            finally:
                with self._mutex:
                    self._session = None

    def _look(self, session: PostgresSession, after_seconds: float) -> bool:
        with session.transaction():
            if session.execute(SQL["lock"]).fetchone() != (True,):
                return True
            newest = session.execute(SQL["newest"]).fetchone()
            if newest is not None and 0 <= newest[0] < after_seconds * MICROSECONDS:
                return bool(newest[1])
            timeout = f"{_LONGEST_LOOK_SECONDS * 1000:.0f}ms"
            session.execute(SQL["bound"], {"timeout": timeout})
            # Not prepared, so that it is planned for the current size of the tables.
            ((in_force, found_below),) = session.execute(
                SQL["look"],
                {
                    "most": MOST_FLOORS,
                    "slow": round(SLOW_SECONDS * MICROSECONDS),
                    "in_force": round(_IN_FORCE_SECONDS * MICROSECONDS),
                    "margin": round(MARGIN_SECONDS * MICROSECONDS),
                },
                prepare=False,
            ).fetchall()
        if found_below:
            self._hints.send()
        return bool(in_force)

"""Clears away the rows that claims have to step over.

Every run leaves dead entries at the very end of the index where claims begin to read, and they stay
until a vacuum. The server's own comes by once a minute; at ten thousand runs a second a claim would
by then walk over half a million of them. So the tick, which any worker does, counts them and has
them cleared when they are many.
"""

import contextlib
import threading

import psycopg

from duly.clock import monotonic
from duly.errors import StoreError
from duly.store.postgres.address import Address
from duly.store.postgres.connection import PostgresSession, connect

DEAD_ROWS = 20_000
REST = 20
"""How many times as long as the last sweep took to wait before the next."""

_VACUUM = "VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, TRUNCATE OFF) duly_runs"


class VacuumThread:
    """Vacuums the table of live runs, in a thread of its own, at most one at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._mutex = threading.Lock()
        self._not_before = 0.0
        self._thread: threading.Thread | None = None
        self._session: PostgresSession | None = None
        self._is_closed = False

    def look(self, dead_rows: int) -> None:
        """Begin a sweep if there is enough to clear and the last one was not just now."""
        if dead_rows < DEAD_ROWS or monotonic() < self._not_before:
            return
        with self._mutex:
            is_sweeping = self._thread is not None and self._thread.is_alive()
            if not is_sweeping and not self._is_closed:
                self._thread = threading.Thread(target=self._sweep, name="duly-sweep", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Break off a sweep that is under way: the next worker's tick begins it anew."""
        with self._mutex:
            self._is_closed = True
            thread, session = self._thread, self._session
        if session is not None:
            with contextlib.suppress(psycopg.Error):
                session.cancel_safe(timeout=1.0)
        if thread is not None:
            thread.join()

    def _sweep(self) -> None:
        begin = monotonic()
        with contextlib.suppress(StoreError, psycopg.Error):
            session = connect(self._address, {})
            try:
                with self._mutex:
                    self._session = None if self._is_closed else session
                if self._session is not None:
                    session.execute(_VACUUM)
            finally:
                with self._mutex:
                    self._session = None
                session.close()
        # A transaction that is held open somewhere keeps dead rows alive, and a role that does not
        # own the table clears nothing: then trying more often would only cost.
        took = monotonic() - begin
        self._not_before = monotonic() + max(1.0, REST * took)

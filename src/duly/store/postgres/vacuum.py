"""Vacuums the rows that claims would otherwise scan.

Every run leaves dead entries at the start of the index range that claims read, and they stay until
a vacuum. The server's autovacuum runs once a minute. At ten thousand runs a second, a claim would
by then scan more than half a million of them. So the tick, which any worker may do, counts them and
starts a vacuum when there are many.
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
"""The pause before the next sweep, as a multiple of the duration of the last one."""

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
        """Start a sweep if there are enough dead rows and the last sweep was not too recent."""
        if dead_rows < DEAD_ROWS or monotonic() < self._not_before:
            return
        with self._mutex:
            is_sweeping = self._thread is not None and self._thread.is_alive()
            if not is_sweeping and not self._is_closed:
                self._thread = threading.Thread(target=self._sweep, name="duly-sweep", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Cancel a sweep that is in progress. The next worker's tick starts it again."""
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
        # A transaction that stays open keeps dead rows alive, and a role that does not own the
        # table removes none. In both cases more frequent sweeps would only cost time.
        took = monotonic() - begin
        self._not_before = monotonic() + max(1.0, REST * took)

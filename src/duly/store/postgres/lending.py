"""A few connections that callers borrow for a while.

By hand, since the driver's pool opens connections in threads of its own behind a back-off: while
the server is away every reader waits for its whole timeout (5 s, where a refused connection is
known within milliseconds) and is then told nothing but that time was up.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from psycopg.pq import TransactionStatus

from duly.errors import StoreBusy, StoreError
from duly.store.postgres.address import Address
from duly.store.postgres.connection import Session, connect

PREPARED_AFTER = 5
KEPT = 4
"""How many stay open while nobody has borrowed them."""


class Sessions:
    """Lends up to `size` connections at once, each opened by the thread that needs it."""

    def __init__(
        self, address: Address, settings: Mapping[str, str], *, size: int, seconds: float = 0.0
    ) -> None:
        self._address = address
        self._settings = settings
        self._size = size
        self._seconds = seconds
        self._room = threading.BoundedSemaphore(size)
        self._mutex = threading.Lock()
        self._idle: list[Session] = []
        self._is_closed = False

    @contextmanager
    def lent(self) -> Iterator[Session]:
        """Lend a connection for the length of a block."""
        session = self.borrow()
        try:
            yield session
        finally:
            self.give_back(session)

    def borrow(self) -> Session:
        """Return a connection that is to be given back."""
        if not self._room.acquire(timeout=self._seconds):
            raise StoreBusy(
                f"all {self._size} connections of this process to {self._address.shown_url} have "
                f"been in use for {self._seconds:g} s; let transactions end sooner, or let fewer "
                f"run at once"
            )
        return self._borrow()

    def borrow_now(self) -> Session | None:
        """Return a connection that is to be given back, or None if all of them are lent."""
        return self._borrow() if self._room.acquire(blocking=False) else None

    def give_back(self, session: Session) -> None:
        """Take a connection back; one that is not as it was lent is closed."""
        is_fit = not session.closed and session.info.transaction_status == TransactionStatus.IDLE
        with self._mutex:
            is_kept = is_fit and not self._is_closed and len(self._idle) < KEPT
            if is_kept:
                self._idle.append(session)
        if not is_kept:
            session.close()
        self._room.release()

    def close(self) -> None:
        """Hang up all; those that are lent out follow when they come back."""
        with self._mutex:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def _borrow(self) -> Session:
        try:
            return self._take() or self._connect()
        except BaseException:
            self._room.release()
            raise

    def _connect(self) -> Session:
        # A script of several statements, which a body may well run, cannot be prepared.
        return connect(self._address, self._settings, prepare_after=PREPARED_AFTER)

    def _take(self) -> Session | None:
        """Return the connection used last that is still alive, if there is one."""
        while True:
            with self._mutex:
                if self._is_closed:
                    raise StoreError("this store is closed; open the application's store anew")
                if not self._idle:
                    return None
                session = self._idle.pop()
            if session.is_alive():
                return session
            session.close()

"""A few connections that callers borrow for a while.

By hand, since the driver's pool opens connections in threads of its own behind a back-off: while
the server is away every reader waits for its whole timeout (5 s, where a refused connection is
known within milliseconds) and is then told nothing but that time was up.

An exception can be raised in the thread of a caller from outside, at any instruction: a time limit
of another engine, Ctrl-C. Therefore no counter says how many connections are lent; after an
exception it could stay wrong for ever. All borrowers are in one line, which knows their loans only
by weak references, and the first `size` of them may have a connection. A loan that its borrower has
lost no longer exists, and any other borrower removes it. Every change to the line is one operation
of a dict, and every change may be repeated.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import ref

from psycopg.pq import TransactionStatus

from duly.clock import monotonic
from duly.errors import StoreBusy, StoreError
from duly.store.postgres.address import Address
from duly.store.postgres.connection import PostgresSession, connect
from duly.store.wake_lock import new_wake_lock, wake

PREPARED_AFTER = 5
MAX_IDLE_CONNECTIONS = 4
"""How many stay open while nobody has borrowed them."""

_LOOK_SECONDS = 0.5
"""How often a waiting borrower checks whether a loan before it was lost."""


class PooledConnection:
    """A place in the line of borrowers, and its connection."""

    __slots__ = ("__weakref__", "session", "turn")
    session: PostgresSession

    def __init__(self) -> None:
        self.turn: threading.Lock | None = None


class ConnectionPool:
    """Lends up to `size` connections at once, each opened by the thread that needs it."""

    def __init__(
        self, address: Address, settings: Mapping[str, str], *, size: int, seconds: float = 0.0
    ) -> None:
        self._address = address
        self._settings = settings
        self._size = size
        self._seconds = seconds
        self._line: dict[ref[PooledConnection], None] = {}
        """The loans in the order in which they were asked for."""
        self._idle: list[PostgresSession] = []
        self._is_closed = False

    @contextmanager
    def connection(self) -> Iterator[PostgresSession]:
        """Lend a connection for the length of a block."""
        loan = self.acquire()
        try:
            yield loan.session
        finally:
            self.release(loan)

    def acquire(self) -> PooledConnection:
        """Return a connection that is to be given back."""
        loan = self._join_line()
        if not self._is_among_first(loan):
            self._wait(loan)
        return self._connected(loan)

    def try_acquire(self) -> PooledConnection | None:
        """Return a connection that is to be given back, or None if all of them are lent."""
        loan = self._join_line()
        if self._is_among_first(loan):
            return self._connected(loan)
        self._leave_line(loan)
        return None

    def release(self, loan: PooledConnection) -> None:
        """Take a connection back; one that is not as it was lent is closed."""
        session = loan.session
        is_fit = not session.closed and session.info.transaction_status == TransactionStatus.IDLE
        if is_fit and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(session)
        else:
            session.close()
        self._leave_line(loan)
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Hang up all; those that are lent out follow when they come back."""
        self._is_closed = True
        while (session := self._pop_idle()) is not None:
            session.close()

    def _join_line(self) -> PooledConnection:
        loan = PooledConnection()
        self._line[ref(loan)] = None
        return loan

    def _leave_line(self, loan: PooledConnection) -> None:
        self._line.pop(ref(loan), None)
        for other in list(self._line)[: self._size]:
            waiting = other()
            turn = None if waiting is None else waiting.turn
            if turn is not None:
                wake(turn)

    def _is_among_first(self, loan: PooledConnection) -> bool:
        """Return whether a loan is one of the first `size`; remove those that were lost."""
        before = 0
        for other in list(self._line):
            found = other()
            if found is loan:
                return True
            if found is None:
                self._line.pop(other, None)
                continue
            before += 1
            if before == self._size:
                return False
        return False

    def _wait(self, loan: PooledConnection) -> None:
        until = monotonic() + self._seconds
        loan.turn = new_wake_lock()
        while not self._is_among_first(loan):
            left = until - monotonic()
            if left <= 0:
                self._leave_line(loan)
                raise StoreBusy(
                    f"timed out: all {self._size} connections of this process to "
                    f"{self._address.shown_url} have been in use for {self._seconds:g} s; shorten "
                    "transactions, or run fewer at once"
                )
            loan.turn.acquire(timeout=min(left, _LOOK_SECONDS))
        loan.turn = None

    def _connected(self, loan: PooledConnection) -> PooledConnection:
        try:
            loan.session = self._take() or self._connect()
        except BaseException:
            self._leave_line(loan)
            raise
        return loan

    def _connect(self) -> PostgresSession:
        # A script of several statements, which a body may well run, cannot be prepared.
        return connect(self._address, self._settings, prepare_after=PREPARED_AFTER)

    def _take(self) -> PostgresSession | None:
        """Return the connection used last that is still alive, if there is one."""
        if self._is_closed:
            raise StoreError("this store is closed; open the store of the application again")
        while (session := self._pop_idle()) is not None:
            if session.is_alive():
                return session
            session.close()
        return None

    def _pop_idle(self) -> PostgresSession | None:
        try:
            return self._idle.pop()
        except IndexError:  # Another thread may have taken the last one.
            return None

"""A small pool of connections.

duly does not use the driver's pool, because that pool opens connections in its own threads with a
back-off. While the server is down, each reader would wait for its whole timeout (5 s), and then get
an error that mentions only the timeout. Here a refused connection raises within milliseconds.

An exception can be raised in a caller's thread from outside, at any instruction: by a time limit of
another engine or by Ctrl-C. Therefore no counter records how many connections are lent. After such
an exception, it could stay wrong for ever. All borrowers are in one line, which refers to their
loans only weakly, and the first `size` of them may have a connection. A loan that its borrower has
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
IDLE_SECONDS = 10.0
"""For how long a connection stays open that nothing uses."""

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
        """The loans in the order of their requests."""
        self._idle: list[tuple[float, PostgresSession]] = []
        """Connections that are not lent, each with the time of its return, the oldest first."""
        self._closer: threading.Thread | None = None
        """Closes connections that are idle for long. It ends when none is idle."""
        self._is_closed = threading.Event()

    @contextmanager
    def connection(self) -> Iterator[PostgresSession]:
        """Lend a connection for the length of a block."""
        loan = self.acquire()
        try:
            yield loan.session
        finally:
            self.release(loan)

    def acquire(self) -> PooledConnection:
        """Return a connection. The caller must release it."""
        loan = self._join_line()
        if not self._is_among_first(loan):
            self._wait(loan)
        return self._connected(loan)

    def try_acquire(self) -> PooledConnection | None:
        """Return a connection that the caller must release, or None if all of them are lent."""
        loan = self._join_line()
        if self._is_among_first(loan):
            return self._connected(loan)
        self._leave_line(loan)
        return None

    def release(self, loan: PooledConnection) -> None:
        """Take a connection back. Close it if it is not idle and outside of any transaction."""
        session = loan.session
        is_fit = not session.closed and session.info.transaction_status == TransactionStatus.IDLE
        if is_fit:
            self._idle.append((monotonic(), session))
        else:
            session.close()
        self._leave_line(loan)
        if self._is_closed.is_set():
            self.close()
        elif self._idle and (self._closer is None or not self._closer.is_alive()):
            self._start_closer()

    def close(self) -> None:
        """Close all connections. Those that are still lent are closed on their release."""
        self._is_closed.set()
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that are not lent."""
        while (session := self._pop_idle()) is not None:
            session.close()

    def _start_closer(self) -> None:
        thread = threading.Thread(target=self._close_unused, name="duly-idle", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # This process can start no more threads.
            self.close_idle()
        else:
            self._closer = thread

    def _close_unused(self) -> None:
        while not self._is_closed.is_set():
            returned_at = min((since for since, _ in self._idle), default=None)
            if returned_at is None:
                self._closer = None
                # A connection that was returned before this assignment found a closer.
                if not self._idle or self._closer is not None:
                    return
                self._closer = threading.current_thread()
                continue
            left = returned_at + IDLE_SECONDS - monotonic()
            if left > 0:
                self._is_closed.wait(left)
            elif (session := self._pop_idle(0)) is not None:
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
        """Return whether a loan is among the first `size`. Remove loans that were lost."""
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
        # A script of several statements, which a body may run, cannot be prepared.
        return connect(self._address, self._settings, prepare_after=PREPARED_AFTER)

    def _take(self) -> PostgresSession | None:
        """Return the most recently used connection that is still alive, if there is one."""
        if self._is_closed.is_set():
            raise StoreError("this store is closed; open the store of the application again")
        while (session := self._pop_idle()) is not None:
            if session.is_alive():
                return session
            session.close()
        return None

    def _pop_idle(self, place: int = -1) -> PostgresSession | None:
        try:
            return self._idle.pop(place)[1]
        except IndexError:  # Another thread may have taken the last one.
            return None

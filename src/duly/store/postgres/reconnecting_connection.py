"""An engine connection that survives lost sessions and contention."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from duly.clock import jitter, monotonic
from duly.errors import StoreError, StoreUnavailable
from duly.store.postgres.address import Address
from duly.store.postgres.connection import AS_LOGIN_ROLE, PostgresSession, connect
from duly.store.postgres.failures import CONTENDED, READ_ONLY, is_fatal, translated

CONTENDED_TRIES = 8
OLD_SESSION_SECONDS = 5.0
_LONGEST_GAP_SECONDS = 10.0
"""Two failures with a longer gap do not show that all writes in between failed."""

_END_SESSION = """
SELECT pg_catalog.pg_terminate_backend(pid, %(milliseconds)s)
  FROM pg_stat_activity
 WHERE pid = %(pid)s AND extract(epoch FROM backend_start) = %(started)s::numeric
"""

T = TypeVar("T")


class WriteFailureRecord:
    """For how long every write of a process has failed, each on a fresh session."""

    def __init__(self) -> None:
        self.failing_since: float | None = None
        """A monotonic time. None after a write that the server answered."""
        self.failed_at = 0.0
        """The time of the last failed write. A process that writes nothing does not update it."""
        self.reason = ""

    def answered(self) -> None:
        """Record that the server answered: it carried out a write, or refused it with an error."""
        self.failing_since = None

    def failed(self, reason: str) -> None:
        """Record that the server could not be reached or not be written, on a fresh session."""
        now = monotonic()
        if self.failing_since is None or now - self.failed_at > _LONGEST_GAP_SECONDS:
            self.failing_since = now
        self.failed_at, self.reason = now, reason


class _TransactionId(NamedTuple):
    """The identity of a transaction, valid on every session."""

    server_life: str
    number: str


class ReconnectingConnection:
    """One engine connection for one purpose. It is opened at first use and replaced when it breaks.

    The caller ensures that only one thread at a time uses it.
    """

    def __init__(
        self,
        address: Address,
        settings: Mapping[str, str],
        record: "WriteFailureRecord | None" = None,
    ) -> None:
        self.address = address
        self._record = record or WriteFailureRecord()
        self._settings = settings
        self._session: PostgresSession | None = None
        self._doubtful: PostgresSession | None = None

    def run(self, work: Callable[[PostgresSession, bool], T], *, is_read: bool = False) -> T:
        """Do some work. Repeat it after contention, and once more after a lost connection.

        `work` gets True if an earlier try lost its connection: that try may have been committed.
        The lost backend has ended by then, except with a pooler. A read-only server wrote nothing,
        so the second try uses the server that is the primary now. The answer to a read does not
        show that the server can be written.
        """
        contended = 0
        lost = moved = False
        while True:
            session = self._open()
            # An exception from outside may have struck before the first statement of earlier work.
            session.begin_nothing()
            try:
                answer = work(session, lost)
            except psycopg.Error as error:
                if session.closed or is_fatal(error):
                    self._drop()
                    if lost:
                        raise self._failed(error) from error
                    lost = True
                    continue
                self._tidy()
                if error.sqlstate == READ_ONLY:
                    self.address.epoch.advance()
                    if moved:
                        raise self._failed(error) from error
                    moved = True
                    continue
                self._record.answered()
                if error.sqlstate not in CONTENDED or contended == CONTENDED_TRIES:
                    raise translated(error, self.address) from error
                contended += 1
                time.sleep(jitter() * 0.002 * 2**contended)
            except BaseException:
                self._tidy()
                raise
            else:
                if not is_read:
                    self._record.answered()
                return answer

    def _failed(self, error: psycopg.Error) -> StoreError:
        """Return duly's error for a driver error on a session that was opened for this write."""
        failure = translated(error, self.address)
        self._record.failed(str(failure))
        return failure

    def transact(
        self,
        work: Callable[[PostgresSession], T],
        again: Callable[[PostgresSession], T] | None = None,
        *,
        wait_milliseconds: int | None = None,
    ) -> T:
        """Do some work in one transaction, exactly once, even if the reply to its commit is lost.

        After a crash of the server it is unknown whether the transaction was committed. In that
        case `again` runs, which must find out by itself. Without `again`, this method raises.
        """
        done: list[tuple[_TransactionId, T]] = []

        def attempt(session: PostgresSession, lost: bool) -> T:  # noqa: FBT001 - as `run` calls it
            act = work
            if lost and done:
                place, answer = done[0]
                is_committed = _is_committed(session, place, self.address)
                if is_committed:
                    return answer
                if is_committed is None:
                    if again is None:
                        raise _unknown(place, self.address)
                    act = again
            done.clear()
            session.begin_with_next_statement(wait_milliseconds)
            answer = act(session)
            if session.transaction_number is not None:
                number = _TransactionId(session.server_life, session.transaction_number)
                done.append((number, answer))
                session.commit_now()
            return answer

        return self.run(attempt)

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _open(self) -> PostgresSession:
        if self._session is not None:
            if self._session.is_alive():
                return self._session
            self.close()
        try:
            session = connect(self.address, self._settings)
        except StoreError as error:
            self._record.failed(str(error))
            raise
        try:
            if self._doubtful is not None:
                end_session(session, self._doubtful, self.address)
        except BaseException:
            session.close()
            raise
        self._doubtful = None
        self._session = session
        return session

    def _drop(self) -> None:
        self._doubtful = self._session
        self.close()

    def _tidy(self) -> None:
        """Leave the connection idle, or drop it."""
        session = self._session
        if session is None:
            return
        try:
            status = session.info.transaction_status
            if status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
                session.execute("ROLLBACK")
            elif status != TransactionStatus.IDLE:
                self._drop()
        except psycopg.Error:
            self._drop()


def end_session(session: PostgresSession, lost: PostgresSession, address: Address) -> None:
    """End the backend of a lost connection, so that its work is final. Skipped with a pooler."""
    if lost.pooled:
        return
    parameters = {
        "pid": lost.pid,
        "started": lost.started,
        "milliseconds": int(OLD_SESSION_SECONDS * 1000),
    }
    try:
        with session.transaction():
            session.execute(AS_LOGIN_ROLE)
            found = session.execute(_END_SESSION, parameters).fetchall()
    except psycopg.Error as error:
        raise translated(error, address) from error
    if found == [(False,)]:
        raise StoreUnavailable(
            f"{address.shown_url}: the connection of backend {lost.pid} was lost and the backend "
            "has not ended yet, so the result of its transaction is unknown"
        )


def _is_committed(session: PostgresSession, place: _TransactionId, address: Address) -> bool | None:
    """Return whether a transaction was committed whose commit got no reply; None if unknown."""
    if session.server_life != place.server_life:
        return None
    deadline = monotonic() + OLD_SESSION_SECONDS
    while True:
        status_of = "SELECT pg_catalog.pg_xact_status(%s::xid8)"
        row = session.execute(status_of, (place.number,)).fetchone()
        status = row[0] if row is not None else None
        if status != "in progress":
            return bool(status == "committed")
        if monotonic() > deadline:
            raise _unknown(place, address)
        time.sleep(0.02)


def _unknown(place: _TransactionId, address: Address) -> StoreUnavailable:
    return StoreUnavailable(
        f"{address.shown_url}: the result of transaction {place.number} is unknown; check whether "
        "it committed before you retry"
    )

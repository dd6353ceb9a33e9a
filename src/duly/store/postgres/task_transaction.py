"""A transaction of the user's in the store's database, which commits together with its run."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from sys import getrefcount
from typing import Any, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from duly import faultpoints
from duly.errors import StoreError, StoreUnavailable, TransactionEnded, TransactionTooLong
from duly.interrupts import defer_interrupts
from duly.limits import POSTGRES_TRANSACTION_SECONDS
from duly.store.ops.runs import Settle, Settled
from duly.store.ops.steps import EndStep
from duly.store.ops.updates import RunUpdate
from duly.store.outage_wait import retry_during_outage
from duly.store.postgres.address import Address
from duly.store.postgres.connection import PostgresSession, connect
from duly.store.postgres.failures import READ_ONLY, is_fatal, translated
from duly.store.postgres.pool import ConnectionPool, PooledConnection
from duly.store.postgres.reconnecting_connection import end_session
from duly.store.postgres.settle import SQL, is_recorded, place_of, settle
from duly.store.postgres.task_connection import ENDED_BY_ITS_BODY, PostgresTaskConnection
from duly.store.postgres.transaction import PostgresTransaction
from duly.store.task_connection import IS_OVER
from duly.store.verbs.steps import has_ended
from duly.store.verbs.verb import carry_out

T = TypeVar("T")

_LOOK_SECONDS = 0.02
_OPEN = {TransactionStatus.INTRANS, TransactionStatus.INERROR}
_HALF_DONE = (
    "the task returned while a statement, a stream of rows, a COPY or a pipeline was still open on "
    "its connection, so nothing was committed; finish them, and join the threads that use them, "
    "before the task returns"
)


class PostgresTaskTransaction:
    """Opens at the first use of its connection. No other writes share it."""

    def __init__(
        self, address: Address, sessions: ConnectionPool, seconds: float | None = None
    ) -> None:
        self._address = address
        self._sessions = sessions
        self._seconds = POSTGRES_TRANSACTION_SECONDS if seconds is None else seconds
        self._open: _BodyTransaction | None = None
        self._could_write = False
        """True if the transaction could write when it was opened. A server that becomes read-only
        lets open transactions write until it ends their connections."""
        self._timer: threading.Timer | None = None
        self._ending = threading.Lock()
        """Held by the thread that ends the transaction: the body's or the timer's."""
        self.too_long: TransactionTooLong | None = None
        """The error, if the transaction was rolled back because it exceeded its limit."""

    @property
    def connection(self) -> PostgresTaskConnection:
        """The connection whose writes commit with the run, or not at all."""
        return self._opened().connection

    @property
    def is_lost(self) -> bool:
        """True if the connection was lost while the transaction was open."""
        return self._open is not None and self._open.session.closed

    def settle_and_commit(self, op: Settle, updates: Sequence[RunUpdate] = ()) -> Settled:
        """Write the fenced completion and commit. A lost claim rolls everything back."""

        def write(session: PostgresSession) -> Settled:
            transaction = PostgresTransaction(session)
            for update in updates:
                carry_out(transaction, update)
            return settle(session, [op])[0]

        def was_written(session: PostgresSession) -> bool:
            rows: list[tuple[Any, ...]] = session.execute(
                SQL["recorded"], place_of([op])
            ).fetchall()
            return is_recorded(op, rows[0])

        return self._commit_with(write, _is_settled, op.run_id, was_written)

    def record_and_commit(self, op: EndStep) -> bool:
        """Record the end of a step, and commit the transaction with it."""
        return self._commit_with(
            lambda session: carry_out(PostgresTransaction(session), op),
            bool,
            op.run_id,
            lambda session: has_ended(PostgresTransaction(session), op),
        )

    def commit(self) -> None:
        """Commit the writes on the connection, without recording anything for a run."""
        self._commit_with(lambda _session: True, bool, "", self._doubt)

    def record(self, op: EndStep) -> bool:
        """Record the end of a step within the transaction."""
        opened = self._opened()
        try:
            with opened.connection.engine_access(), opened.session.unprepared():
                return carry_out(PostgresTransaction(opened.session), op)
        except psycopg.Error as error:
            raise self._worded(error) from error

    def rollback(self) -> None:
        """Undo all uncommitted writes and release the connection."""
        with defer_interrupts():
            self._take_back()
            with self._ending:
                self._close()

    def _opened(self) -> "_BodyTransaction":
        if self.too_long is not None:
            raise self.too_long
        while self._open is None:
            if not retry_during_outage(self._start):
                # Other bodies hold all connections, each for at most its limit. This wait is
                # outside of the shield, so that the attempt's timeout can interrupt it.
                time.sleep(_LOOK_SECONDS)
        return self._open

    def _start(self) -> bool:
        """Open the transaction if a connection is free. Return whether it was opened."""
        with defer_interrupts():
            loan = self._sessions.try_acquire()
            if loan is None:
                return False
            self._open = self._begin(loan)
            self._timer = threading.Timer(self._seconds, self._expire)
            self._timer.daemon = True
            self._timer.start()
        return True

    def _begin(self, loan: PooledConnection) -> "_BodyTransaction":
        session = loan.session
        try:
            references = getrefcount(session.pgconn)
            # The transaction begins here, so `connection.transaction()` in the body is a savepoint.
            number, self._could_write = session.begin_task_transaction(self._seconds)
            return _BodyTransaction(loan, PostgresTaskConnection(session), number, references)
        except BaseException as error:
            # A timeout may strike here too. The connection is always released.
            session.close()
            self._sessions.release(loan)
            if isinstance(error, psycopg.Error):
                raise translated(error, self._address) from error
            raise

    def _take_back(self) -> None:
        """Make this thread the only user of the connection, after a call that is in progress.

        The caller must not hold `_ending` during this, since the timer may have to end that call.
        """
        opened = self._open
        if opened is not None:
            opened.connection.retire(TransactionEnded(IS_OVER))

    def _commit_with(
        self,
        write: Callable[[PostgresSession], T],
        is_done: Callable[[T], bool],
        run_id: str,
        was_written: Callable[[PostgresSession], bool],
    ) -> T:
        with defer_interrupts():
            self._take_back()
            with self._ending:
                try:
                    opened = self._opened()
                    session = opened.session
                    faultpoints.hit("transaction.before_settle")
                    opened.check()
                    answer = write(session)
                    if is_done(answer):
                        faultpoints.hit("transaction.before_commit")
                        self._commit(session, run_id, was_written)
                        opened.is_committed = True
                        faultpoints.hit("transaction.after_commit")
                except psycopg.Error as error:
                    raise self._worded(error) from error
                finally:
                    self._close()
        return answer

    def _expire(self) -> None:
        """End the backend while the body runs. Called in the timer's thread."""
        with self._ending:
            opened = self._open
            if opened is None:
                return
            session = opened.session
            self.too_long = TransactionTooLong(
                f"a transaction on {self._address.shown_url} exceeded its limit of "
                f"{self._seconds:g} s and was rolled back; do slow work before the transaction, or "
                "set transaction_limit="
            )
            opened.connection.invalidate(self.too_long)
            with suppress(StoreError, psycopg.Error):
                if session.pooled:
                    # The backend may serve other clients by now. The rollback happens when the body
                    # ends.
                    session.cancel_safe(timeout=1.0)
                    return
                with closing(connect(self._address, {})) as other:
                    end_session(other, session, self._address)

    def _close(self) -> None:
        opened, self._open = self._open, None
        if opened is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        session = opened.session
        try:
            if opened.is_whole:
                session.roll_back()
            else:
                session.close()
        except psycopg.Error:
            session.close()
        finally:
            self._sessions.release(opened.loan)

    def _commit(
        self, session: PostgresSession, run_id: str, was_written: Callable[[PostgresSession], bool]
    ) -> None:
        try:
            session.commit()
        except psycopg.Error as error:
            if not session.closed and not is_fatal(error):
                raise
            session.close()
            if not self._was_committed(session, was_written):
                raise StoreUnavailable(
                    f"{self._address.shown_url}: the connection was lost while run {run_id} was "
                    "being committed; nothing was written, and the run can run again"
                ) from error

    def _was_committed(
        self, lost: PostgresSession, was_written: Callable[[PostgresSession], bool]
    ) -> bool:
        """Return whether the commit took effect. Read this after the old backend has ended."""
        with closing(connect(self._address, {})) as session:
            end_session(session, lost, self._address)
            return was_written(session)

    def _doubt(self, _session: PostgresSession) -> bool:
        raise StoreUnavailable(
            f"{self._address.shown_url}: the connection was lost during a commit; read the data "
            "again to find out whether it was committed"
        )

    def _worded(self, error: psycopg.Error) -> StoreError:
        if isinstance(error, psycopg.errors.InFailedSqlTransaction):
            return StoreError(
                "a statement in this run's transaction failed and the task caught the error; raise "
                "the error again, or run the statement in a savepoint (connection.transaction())"
            )
        if error.sqlstate == READ_ONLY and self._could_write:
            return StoreError(
                "the task made its transaction read-only, so the result of the run cannot be "
                "recorded; remove SET TRANSACTION READ ONLY, or use another connection to read"
            )
        return translated(error, self._address)


class _BodyTransaction:
    """A transaction that a body uses."""

    def __init__(
        self, loan: PooledConnection, lent: PostgresTaskConnection, number: str, references: int
    ) -> None:
        self.loan = loan
        self.session = loan.session
        self.connection = lent
        self._number = number
        self._references = references
        self.is_committed = False

    def check(self) -> None:
        """Refuse to end a transaction that the engine did not open, or one with open statements."""
        status = self.session.info.transaction_status
        is_piping = self.session.pgconn.pipeline_status != PipelineStatus.OFF
        if status == TransactionStatus.ACTIVE or is_piping:
            raise TransactionEnded(_HALF_DONE)
        # If the connection is broken, the driver raises an error for it.
        is_gone = status == TransactionStatus.IDLE
        self.session.forget_before_end()
        if is_gone or self.session.prepare_to_settle() != self._number:
            self.session.close()
            raise TransactionEnded(ENDED_BY_ITS_BODY)

    @property
    def is_whole(self) -> bool:
        """True if the connection can serve other runs: it is unchanged, and no object refers to it.

        If a cursor or libpq's own connection outlived the body, it could write into the transaction
        of another run.
        """
        status = self.session.info.transaction_status
        wanted = {TransactionStatus.IDLE} if self.is_committed else _OPEN
        return status in wanted and getrefcount(self.session.pgconn) <= self._references


def _is_settled(answer: Settled) -> bool:
    return answer is Settled.DONE

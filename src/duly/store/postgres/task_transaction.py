"""The driver of task transactions on the store's PostgreSQL connections."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from sys import getrefcount
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from duly.errors import StoreError, StoreUnavailable, TransactionEnded, TransactionTooLong
from duly.limits import POSTGRES_TRANSACTION_SECONDS
from duly.store.ops.op import AnyOp
from duly.store.ops.runs import Settle
from duly.store.ops.steps import EndStep
from duly.store.postgres.address import Address
from duly.store.postgres.connection import PostgresSession, connect
from duly.store.postgres.failures import READ_ONLY, is_fatal, translated
from duly.store.postgres.pool import ConnectionPool, PooledConnection
from duly.store.postgres.reconnecting_connection import end_session
from duly.store.postgres.settle import SQL, is_recorded, place_of
from duly.store.postgres.task_connection import ENDED_BY_ITS_BODY, PostgresTaskConnection
from duly.store.postgres.transaction import PostgresTransaction
from duly.store.task_connection import IS_OVER
from duly.store.task_transaction import carry_out_all
from duly.store.verbs.steps import has_ended

_OPEN = {TransactionStatus.INTRANS, TransactionStatus.INERROR}
_HALF_DONE = (
    "the task returned while a statement, a stream of rows, a COPY or a pipeline was still open on "
    "its connection, so nothing was committed; finish them, and join the threads that use them, "
    "before the task returns"
)


class PostgresTaskTransactionDriver:
    """Lends connections of a pool to tasks."""

    limit_seconds = POSTGRES_TRANSACTION_SECONDS

    def __init__(self, address: Address, sessions: ConnectionPool) -> None:
        self.address = address
        self.sessions = sessions
        self.database = address.shown_url

    def begin(self, seconds: float) -> "PostgresTaskTransaction | None":
        """Open a transaction. Return None if all connections of the pool are in use."""
        loan = self.sessions.try_acquire()
        if loan is None:
            return None
        try:
            return PostgresTaskTransaction(self, loan, seconds)
        except BaseException as error:
            # A timeout may strike here too. The connection is always released.
            loan.session.close()
            self.sessions.release(loan)
            if isinstance(error, psycopg.Error):
                raise translated(error, self.address) from error
            raise


class PostgresTaskTransaction:
    """A transaction on a connection of the pool. No other writes share it."""

    def __init__(
        self, driver: PostgresTaskTransactionDriver, loan: PooledConnection, seconds: float
    ) -> None:
        self._driver = driver
        self._loan = loan
        self._session = loan.session
        self._references = getrefcount(self._session.pgconn)
        # The transaction begins here, so `connection.transaction()` in the body is a savepoint.
        # A server that becomes read-only lets open transactions write until it ends their
        # connections.
        self._number, self._could_write = self._session.begin_task_transaction(seconds)
        self.connection = PostgresTaskConnection(self._session)
        self._is_committed = False

    @property
    def is_lost(self) -> bool:
        """True if the connection was lost while the transaction was open."""
        return self._session.closed

    def record(self, op: EndStep) -> bool:
        """Carry out an op while the task continues to use the connection."""
        with self._own_errors(), self.connection.engine_access(), self._session.unprepared():
            return bool(carry_out_all(PostgresTransaction(self._session), [op])[0])

    def take_back(self) -> None:
        """Take the connection from the task, after the call that is in progress."""
        self.connection.retire(TransactionEnded(IS_OVER))

    def expire(self, why: TransactionTooLong) -> None:
        """End the backend while the task runs."""
        self.connection.invalidate(why)
        with suppress(StoreError, psycopg.Error):
            if self._session.pooled:
                # The backend may serve other clients by now. The rollback happens when the body
                # ends.
                self._session.cancel_safe(timeout=1.0)
            else:
                self._connect_to_end_backend().close()

    def apply(self, ops: Sequence[AnyOp]) -> list[Any]:
        """Carry out ops in the transaction, unless the task has ended it."""
        with self._own_errors():
            self._check()
            return carry_out_all(PostgresTransaction(self._session), ops)

    def commit(self, op: AnyOp | None) -> None:
        """Commit. If the reply is lost, read back whether the last op took effect."""
        with self._own_errors():
            try:
                self._session.commit()
            except psycopg.Error as error:
                if not self._session.closed and not is_fatal(error):
                    raise
                self._session.close()
                if not self._was_committed(op):
                    raise StoreUnavailable(
                        f"{self._driver.database}: the connection was lost while the end of a run "
                        "was being committed; nothing was written, and the run can run again"
                    ) from error
            self._is_committed = True

    def close(self) -> None:
        """Roll back what is not committed, and release the connection."""
        try:
            if self._is_whole:
                self._session.roll_back()
            else:
                self._session.close()
        except psycopg.Error:
            self._session.close()
        finally:
            self._driver.sessions.release(self._loan)

    def _check(self) -> None:
        """Refuse to end a transaction that the engine did not open, or one with open statements."""
        status = self._session.info.transaction_status
        is_piping = self._session.pgconn.pipeline_status != PipelineStatus.OFF
        if status == TransactionStatus.ACTIVE or is_piping:
            raise TransactionEnded(_HALF_DONE)
        # If the connection is broken, the driver raises an error for it.
        is_gone = status == TransactionStatus.IDLE
        self._session.forget_before_end()
        if is_gone or self._session.prepare_to_settle() != self._number:
            self._session.close()
            raise TransactionEnded(ENDED_BY_ITS_BODY)

    @property
    def _is_whole(self) -> bool:
        """True if the connection can serve other runs: it is unchanged, and no object refers to it.

        If a cursor or libpq's own connection outlived the body, it could write into the transaction
        of another run.
        """
        status = self._session.info.transaction_status
        wanted = {TransactionStatus.IDLE} if self._is_committed else _OPEN
        return status in wanted and getrefcount(self._session.pgconn) <= self._references

    def _connect_to_end_backend(self) -> PostgresSession:
        """Return a new connection, after the backend of this transaction has ended."""
        other = connect(self._driver.address, {})
        try:
            end_session(other, self._session, self._driver.address)
        except BaseException:
            other.close()
            raise
        return other

    def _was_committed(self, op: AnyOp | None) -> bool:
        """Return whether the commit took effect. The old backend can no longer commit."""
        with closing(self._connect_to_end_backend()) as session:
            if isinstance(op, Settle):
                return is_recorded(
                    op, session.execute(SQL["recorded"], place_of([op])).fetchall()[0]
                )
            if isinstance(op, EndStep):
                return has_ended(PostgresTransaction(session), op)
        raise StoreUnavailable(
            f"{self._driver.database}: the connection was lost during a commit; read the data "
            "again to find out whether it was committed"
        )

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.InFailedSqlTransaction as error:
            raise StoreError(
                "a statement in this run's transaction failed and the task caught the error; raise "
                "the error again, or run the statement in a savepoint (connection.transaction())"
            ) from error
        except psycopg.Error as error:
            if error.sqlstate == READ_ONLY and self._could_write:
                raise StoreError(
                    "the task made its transaction read-only, so the result of the run cannot be "
                    "recorded; remove SET TRANSACTION READ ONLY, or use another connection to read"
                ) from error
            raise translated(error, self._driver.address) from error

"""A transaction of the user's in the store's database that ends with its run's completion."""

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

from duly import faultpoints
from duly.errors import StoreError, StoreUnavailable, TransactionTooLong
from duly.limits import POSTGRES_SECTION_SECONDS
from duly.shield import shielded
from duly.store.ops import Settle, Settled
from duly.store.postgres.address import Address
from duly.store.postgres.connection import Session, connect, end_session
from duly.store.postgres.failures import is_fatal, translated
from duly.store.postgres.lending import Sessions
from duly.store.postgres.settle import SQL, is_recorded, place_of, settle
from duly.store.postgres.steps import end, has_ended
from duly.store.step_ops import EndStep

T = TypeVar("T")


class PostgresSection:
    """Opens at the first use of its connection; nobody else's writes share it."""

    def __init__(self, address: Address, sessions: Sessions, seconds: float | None = None) -> None:
        self._address = address
        self._sessions = sessions
        self._seconds = POSTGRES_SECTION_SECONDS if seconds is None else seconds
        self._session: Session | None = None
        self._timer: threading.Timer | None = None
        self._ending = threading.Lock()
        """Held by whoever ends it: the body's thread or the timer's."""
        self.too_long: TransactionTooLong | None = None
        """Why it was rolled back, if it was for that."""

    @property
    def connection(self) -> Session:
        """The connection whose writes commit with the run, or not at all."""
        if self.too_long is not None:
            raise self.too_long
        if self._session is None:
            with shielded():
                self._open()
        assert self._session is not None  # noqa: S101 - for the type checker
        return self._session

    def _open(self) -> None:
        session = self._sessions.borrow()
        try:
            session.autocommit = False
            # Begun here, lest a `connection.transaction()` of the body begin it and commit.
            session.execute("SELECT 1")
        except BaseException as error:
            # A timeout may strike here too; what was borrowed goes back whatever happens.
            session.close()
            self._sessions.give_back(session)
            if isinstance(error, psycopg.Error):
                raise translated(error, self._address) from error
            raise
        session.is_lent = True
        self._session = session
        self._timer = threading.Timer(self._seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def settle_and_commit(self, op: Settle) -> Settled:
        """Write the completion, fenced, and commit all; a lost claim rolls all back."""

        def write(session: Session) -> Settled:
            session.prepare_to_settle()
            (answer,) = settle(session, [op])
            return answer

        def was_written(session: Session) -> bool:
            rows: list[tuple[Any, ...]] = session.execute(
                SQL["recorded"], place_of([op])
            ).fetchall()
            return is_recorded(op, rows[0])

        return self._commit_with(write, _is_settled, op.run_id, was_written)

    def record_and_commit(self, op: EndStep) -> bool:
        """Write down what a step came to, and end the transaction with it."""
        return self._commit_with(
            lambda session: end(session, op),
            bool,
            op.run_id,
            lambda session: has_ended(session, op),
        )

    def record(self, op: EndStep) -> bool:
        """Write down what a step came to, as a part of the transaction."""
        session = self.connection
        try:
            return end(session, op)
        except psycopg.Error as error:
            raise self._worded(error) from error

    def _commit_with(
        self,
        write: Callable[[Session], T],
        is_done: Callable[[T], bool],
        run_id: str,
        was_written: Callable[[Session], bool],
    ) -> T:
        with shielded(), self._ending:
            try:
                session = self.connection
                faultpoints.hit("transaction.before_settle")
                session.is_lent = False
                _restore(session)
                answer = write(session)
                if is_done(answer):
                    faultpoints.hit("transaction.before_commit")
                    self._commit(session, run_id, was_written)
                    faultpoints.hit("transaction.after_commit")
            except psycopg.Error as error:
                raise self._worded(error) from error
            finally:
                self._close()
        return answer

    def rollback(self) -> None:
        """Undo what is not committed and give the connection back."""
        with shielded(), self._ending:
            self._close()

    def _expire(self) -> None:
        """End the backend in the midst of the body, from the timer's thread."""
        with self._ending:
            session = self._session
            if session is None:
                return
            self.too_long = TransactionTooLong(
                f"a transaction on {self._address.shown_url} was open for longer than "
                f"{self._seconds:g} s and was rolled back; do what takes time before it, or set "
                f"transaction_limit="
            )
            with suppress(StoreError, psycopg.Error):
                if session.pooled:
                    # The backend may by now serve others; the rollback comes with the body's end.
                    session.cancel_safe(timeout=1.0)
                    return
                with closing(connect(self._address, {})) as other:
                    end_session(other, session, self._address)

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        session.is_lent = False
        try:
            if not session.closed:
                session.rollback()
                session.autocommit = True
                _restore(session)
                session.forget()
        except psycopg.Error:
            session.close()
        finally:
            self._sessions.give_back(session)

    def _commit(
        self, session: Session, run_id: str, was_written: Callable[[Session], bool]
    ) -> None:
        try:
            session.commit()
        except psycopg.Error as error:
            if not session.closed and not is_fatal(error):
                raise
            session.close()
            if not self._was_committed(session, was_written):
                raise StoreUnavailable(
                    f"{self._address.shown_url}: the connection was lost while run {run_id} "
                    f"was being committed, and nothing of it was written; it can run again"
                ) from error

    def _was_committed(self, lost: Session, was_written: Callable[[Session], bool]) -> bool:
        """Read back, once the old backend is gone, whether what it was to commit is there."""
        with closing(connect(self._address, {})) as session:
            end_session(session, lost, self._address)
            return was_written(session)

    def _worded(self, error: psycopg.Error) -> StoreError:
        if isinstance(error, psycopg.errors.InFailedSqlTransaction):
            return StoreError(
                "a statement in this run's transaction failed and its error was caught; let it "
                "out, or guard the statement with a savepoint (connection.transaction())"
            )
        return translated(error, self._address)


def _restore(session: Session) -> None:
    """Undo what the body may have set for its own convenience."""
    session.row_factory = tuple_row
    session.cursor_factory = psycopg.Cursor


def _is_settled(answer: Settled) -> bool:
    return answer is Settled.DONE

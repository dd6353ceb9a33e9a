"""A transaction of the user's in the store's database that ends with its run's completion."""

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from duly import faultpoints
from duly.errors import StoreError, StoreUnavailable
from duly.store.ops import Settle, Settled
from duly.store.postgres.address import Address
from duly.store.postgres.connection import Session, connect, end_session
from duly.store.postgres.failures import is_fatal, translated
from duly.store.postgres.lending import Sessions
from duly.store.postgres.settle import SQL, is_recorded, place_of, settle


class PostgresSection:
    """Opens at the first use of its connection; nobody else's writes share it."""

    def __init__(self, address: Address, sessions: Sessions) -> None:
        self._address = address
        self._sessions = sessions
        self._session: Session | None = None

    @property
    def connection(self) -> Session:
        """The connection whose writes commit with the run, or not at all."""
        if self._session is None:
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
        return self._session

    def settle_and_commit(self, op: Settle) -> Settled:
        """Write the completion, fenced, and commit all; a lost claim rolls all back."""
        session = self.connection
        try:
            faultpoints.hit("transaction.before_settle")
            session.is_lent = False
            _restore(session)
            session.prepare_to_settle()
            (answer,) = settle(session, [op])
            if answer is Settled.DONE:
                faultpoints.hit("transaction.before_commit")
                self._commit(session, op)
                faultpoints.hit("transaction.after_commit")
        except psycopg.Error as error:
            raise self._worded(error) from error
        finally:
            self.rollback()
        return answer

    def rollback(self) -> None:
        """Undo what is not committed and give the connection back."""
        session, self._session = self._session, None
        if session is None:
            return
        session.is_lent = False
        try:
            if not session.closed:
                session.rollback()
                session.autocommit = True
                _restore(session)
        except psycopg.Error:
            session.close()
        finally:
            self._sessions.give_back(session)

    def _commit(self, session: Session, op: Settle) -> None:
        try:
            session.commit()
        except psycopg.Error as error:
            if not session.closed and not is_fatal(error):
                raise
            session.close()
            if not self._was_committed(session, op):
                raise StoreUnavailable(
                    f"{self._address.shown_url}: the connection was lost while run {op.run_id} "
                    f"was being committed, and nothing of it was written; it can run again"
                ) from error

    def _was_committed(self, lost: Session, op: Settle) -> bool:
        """Read back, once the old backend is gone, whether this run's completion is there."""
        session = connect(self._address, {})
        try:
            end_session(session, lost, self._address)
            rows: list[tuple[Any, ...]] = session.execute(
                SQL["recorded"], place_of([op])
            ).fetchall()
        finally:
            session.close()
        return is_recorded(op, rows[0])

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

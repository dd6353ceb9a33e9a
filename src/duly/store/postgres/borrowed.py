"""A store on a PostgreSQL connection that somebody else opened, such as one of a test's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus

from duly.store.borrowed import Alone, Lender
from duly.store.ops import Op
from duly.store.postgres.address import Address
from duly.store.postgres.claim import Claimer
from duly.store.postgres.connection import HOT, Line, Session
from duly.store.postgres.failures import translated
from duly.store.postgres.inspect import SQL as INSPECT
from duly.store.postgres.prepared import Prepared
from duly.store.postgres.store import PostgresStore
from duly.store.postgres.sweep import Sweeper
from duly.store.postgres.wakeup import Hints
from duly.store.postgres.writers import Writers
from duly.store.schema import Schema

T = TypeVar("T")


class BorrowedPostgresStore(Alone, PostgresStore):
    """Writes in whichever transaction is open there."""

    has_one_writer = False

    def __init__(self, lender: Lender, url: str) -> None:
        self.url = url
        self._address = Address(url)
        self.shown_url = self._address.shown_url
        self.notices: list[str] = []
        self._database: str | None = None
        self._line = BorrowedLine(lender, self._address)
        self._writers = BorrowedWriters(self._line, self._address)

    def apply(self, ops: Sequence[Op]) -> list[Any]:
        """Write the ops and return their answers, in order."""
        return self._writers.apply(ops)

    def _query(
        self,
        sql: str,
        parameters: Mapping[str, Any],
        *,
        prepare: bool | None = None,
    ) -> list[tuple[Any, ...]]:
        return self._line.read(
            lambda session: session.execute(sql, parameters, prepare=prepare).fetchall()
        )

    def read_schema(self) -> Schema:
        """Return the version of the tables; 0 if there are none."""
        if self._query("SELECT to_regclass('duly_schema') IS NOT NULL", {}) != [(True,)]:
            return Schema(0, 0)
        return Schema(*self._query(INSPECT["schema"], {})[0])


class BorrowedLine(Line):
    """The connection that was lent, as the engine's own look."""

    def __init__(self, lender: Lender, address: Address) -> None:
        super().__init__(address, HOT)
        self._lender = lender
        self._known: Session | None = None

    def read(self, work: Callable[[Session], T]) -> T:
        """Do some work that only reads."""
        try:
            with self._lender.reading() as connection:
                return work(self._session_on(connection))
        except psycopg.Error as error:
            raise translated(error, self.address) from error

    def run(self, work: Callable[[Session, bool], T]) -> T:
        """Do some work, once: what goes wrong is undone by whoever lends the connection."""
        try:
            with self._lender.writing() as connection:
                if connection.info.transaction_status == TransactionStatus.IDLE:
                    connection.execute("SELECT")  # The driver opens a transaction when first used.
                return work(self._session_on(connection), False)  # noqa: FBT003 - nothing was lost
        except psycopg.Error as error:
            raise translated(error, self.address) from error

    def transact(self, work: Callable[[Session], T]) -> T:
        """Do some work in the transaction that is open."""
        return self.run(lambda session, _lost: work(session))

    def _session_on(self, connection: psycopg.Connection[Any]) -> Session:
        if self._known is None or self._known.pgconn is not connection.pgconn:
            # Another object on the same socket: the caller's own has other ideas of rows.
            session = Session(connection.pgconn)
            session._lone = Prepared(session)  # noqa: SLF001 - what `greet` does for our own
            session._deaf = session.cursor()  # noqa: SLF001
            # What opens and ends transactions is the caller's object, and so is the connection.
            session._autocommit = True  # noqa: SLF001
            session._pool = cast("Any", self)  # noqa: SLF001 - it may go without being closed
            self._known = session
        return self._known


class _Silence(Hints):
    """Tells nobody: whoever else looks at the database sees nothing of this yet."""

    def send(self) -> None:
        """Send nothing."""

    def may_ride(self) -> bool:
        """Say no."""
        return False


class _NoSweeper(Sweeper):
    """Leaves dead rows where they are."""

    def look(self, dead_rows: int) -> None:
        """Do nothing."""


class BorrowedWriters(Writers):
    """All that is written goes over one line."""

    def __init__(self, line: BorrowedLine, address: Address) -> None:
        super().__init__(address)
        self._lines = dict.fromkeys(self._lines, line)
        self._patient = line
        self._claimer = Claimer(line)
        self.hints = _Silence(address)
        self._sweeper = _NoSweeper(address)

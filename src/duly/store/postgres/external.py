"""A store on a PostgreSQL connection that the caller opened, such as a test's connection."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from duly.store.external import ExternalConnectionProvider, SingleProcessStore
from duly.store.hints import ReadyHints, encode, hints_of
from duly.store.ops.op import A, Op
from duly.store.ops.runs import Enqueue
from duly.store.ops.steps import SendEvent
from duly.store.postgres.address import Address
from duly.store.postgres.claim import PostgresClaims
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.failures import translated
from duly.store.postgres.reconnecting_connection import ReconnectingConnection
from duly.store.postgres.session_settings import HOT
from duly.store.postgres.store import PostgresStore
from duly.store.postgres.vacuum import VacuumThread
from duly.store.postgres.wakeup import PostgresHints, notify
from duly.store.postgres.write_paths import WritePaths
from duly.store.transaction import Row

T = TypeVar("T")

BY_INDEX: Mapping[str, str] = {
    # The statistics of the tables may be misleading, for example after a queue was emptied.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    # Forbidden plans have such high costs that the server would compile them.
    "jit": "off",
}
_FORCE_INDEX = """
SELECT pg_catalog.current_setting('enable_seqscan'),
       pg_catalog.current_setting('enable_bitmapscan'),
       pg_catalog.current_setting('jit'), pg_catalog.set_config('enable_seqscan', 'off', true),
       pg_catalog.set_config('enable_bitmapscan', 'off', true),
       pg_catalog.set_config('jit', 'off', true)
"""
_RESTORE_SETTINGS = """
SELECT pg_catalog.set_config('enable_seqscan', %s, true),
       pg_catalog.set_config('enable_bitmapscan', %s, true),
       pg_catalog.set_config('jit', %s, true)
"""


class ExternalPostgresStore(SingleProcessStore, PostgresStore):
    """Writes in the transaction that is open on the caller's connection."""

    has_one_writer = False

    def __init__(self, lender: ExternalConnectionProvider, url: str) -> None:
        self.url = url
        self._address = Address(url)
        self.shown_url = self._address.shown_url
        self.notices: list[str] = []
        self._database: str | None = None
        self._line = ExternalPostgresConnection(lender, self._address)
        self._writers = ExternalWritePaths(self._line, self._address)

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        """Carry out the ops, and return their answers in the same order."""
        return self._writers.apply(ops)

    def wake(self, *ops: Enqueue) -> None:
        """Send a hint to workers when the open transaction commits."""
        self._writers.hints.send(hints_of(ops))

    def _note_external_names(self, op: Enqueue | SendEvent) -> None:
        """Record nothing: a wait for a key happens in the same transaction that holds it."""

    def _read_for_engine(
        self,
        connection: str,  # noqa: ARG002 - there is one
        sql: str,
        parameters: Mapping[str, Any],
    ) -> list[Row]:
        return self._read(sql, parameters)

    def _read(
        self, sql: str, parameters: Mapping[str, Any], *, prepare: bool | None = None
    ) -> list[Row]:
        return self._line.read(
            lambda session: session.execute(sql, parameters, prepare=prepare).fetchall()
        )


class ExternalPostgresSession(PostgresSession):
    """A second object on the socket of the caller's connection, with the engine's row format.

    The caller's object opens and ends transactions, and the backend is shared with all borrowers of
    the connection. So this object begins no transactions and prepares no named statements.
    """

    def __init__(self, lender: psycopg.Connection[Any]) -> None:
        raw = lender.pgconn
        handlers = raw.notice_handler, raw.notify_handler
        super().__init__(raw)
        raw.notice_handler, raw.notify_handler = handlers
        self._autocommit = True
        self.prepare_threshold = None
        self._deaf = self.cursor()

    def __del__(self, *_warn: object) -> None:
        """Leave the connection open, since its owner closes it."""

    def begin(self) -> None:
        """Do nothing: a transaction is open."""

    def commit_now(self) -> None:
        """Do nothing: the caller ends the transaction."""

    def execute_alone(
        self,
        sql: str,
        parameters: Mapping[str, Any],
        *,
        wait_milliseconds: int | None = None,  # noqa: ARG002 - the owner's settings stay
    ) -> list[tuple[Any, ...]]:
        """Execute one statement in the open transaction."""
        cursor = self.execute(sql, parameters)
        return cursor.fetchall() if cursor.description is not None else []


class ExternalPostgresConnection(ReconnectingConnection):
    """The caller's connections as engine connections: each thread uses the one that it was lent."""

    def __init__(self, lender: ExternalConnectionProvider, address: Address) -> None:
        super().__init__(address, HOT)
        self._lender = lender
        self._known = threading.local()

    def read(self, work: Callable[[PostgresSession], T]) -> T:
        """Do some work that only reads."""
        try:
            with self._lender.reading() as connection:
                return work(self._session_on(connection))
        except psycopg.Error as error:
            raise translated(error, self.address) from error

    def run(self, work: Callable[[PostgresSession, bool], T], *, is_read: bool = False) -> T:  # noqa: ARG002 - for another kind
        """Do some work once. If it fails, the owner of the connection rolls it back.

        If it succeeds, the planner settings of the caller are restored.
        """
        try:
            with self._lender.writing() as connection:
                if connection.info.transaction_status == TransactionStatus.IDLE:
                    connection.execute("SELECT")  # The driver begins a transaction at first use.
                session = self._session_on(connection)
                ((*before, _, _, _),) = session.execute(_FORCE_INDEX).fetchall()
                answer = work(session, False)  # noqa: FBT003 - nothing was lost
                session.execute(_RESTORE_SETTINGS, before)
                return answer
        except psycopg.Error as error:
            raise translated(error, self.address) from error

    def transact(
        self,
        work: Callable[[PostgresSession], T],
        again: Callable[[PostgresSession], T] | None = None,  # noqa: ARG002 - work runs only once here
        *,
        wait_milliseconds: int | None = None,  # noqa: ARG002 - the owner's settings stay
    ) -> T:
        """Do some work in the open transaction."""
        return self.run(lambda session, _lost: work(session))

    def _session_on(self, connection: psycopg.Connection[Any]) -> PostgresSession:
        session: PostgresSession | None = getattr(self._known, "session", None)
        if session is None or session.pgconn is not connection.pgconn:
            session = self._known.session = ExternalPostgresSession(connection)
        return session


class ExternalPostgresHints(PostgresHints):
    """Hints that are sent when the open transaction commits."""

    def __init__(self, line: ExternalPostgresConnection) -> None:
        super().__init__(line.address, self._notify_at_commit)
        self._line = line

    def _notify_at_commit(self, payload: str) -> None:
        self._line.run(lambda session, _lost: notify(session, payload))

    def send(self, hints: ReadyHints = ()) -> None:
        """Send hints to all processes. Listeners of this process get them from the server too."""
        self._notify_at_commit(encode(hints))

    def may_piggyback(self) -> bool:
        """Return False: every hint of this class is part of the transaction anyway."""
        return False


class _NoVacuum(VacuumThread):
    """Never vacuums, so dead rows stay."""

    def look(self, dead_rows: int) -> None:
        """Do nothing."""


class ExternalWritePaths(WritePaths):
    """Writes everything over one connection, in the thread of the caller."""

    def __init__(self, line: ExternalPostgresConnection, address: Address) -> None:
        super().__init__(address)
        self._lines = dict.fromkeys(self._lines, line)
        self._claimer = PostgresClaims(line)
        self.hints = ExternalPostgresHints(line)
        self._sweeper = _NoVacuum(address)

    def _write(self, path: str, ops: Sequence[Op[A]]) -> list[A]:
        # Ops of other threads are not included, since each thread has its own transaction.
        return self._writes[path](list(ops))

"""Sessions on PostgreSQL: how they connect, and the operations that they offer."""

import select
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.sql import SQL, Literal

from duly.errors import StoreRefused
from duly.store.postgres.address import Address, Epoch
from duly.store.postgres.arrays import texts
from duly.store.postgres.failures import translated
from duly.store.postgres.prepared_statements import PreparedStatements
from duly.store.postgres.session_settings import FROZEN
from duly.store.postgres.timed_statement import execute_within

OLDEST_SERVER = 140_000
GREETING_SECONDS = 5.0

# This calls the function, because planning the view pg_stat_activity takes a third of the time
# that a new session costs.
_GREETING = """
SELECT pg_catalog.current_setting('search_path'), pg_catalog.current_setting('role'),
       pg_catalog.current_setting('statement_timeout'), pg_catalog.current_setting('lock_timeout'),
       pg_catalog.pg_backend_pid(), pg_catalog.current_setting('server_encoding'),
       pg_catalog.current_setting('synchronous_commit'),
       pg_catalog.current_setting('server_version_num')::integer,
       extract(epoch FROM pg_catalog.pg_stat_get_bgwriter_stat_reset_time()),
       (SELECT extract(epoch FROM backend_start)
          FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()))
"""
AS_LOGIN_ROLE = "SET LOCAL ROLE NONE"
"""A role that is set by default may be unable to see or end the sessions of the login role."""
_FORGET = """
CLOSE ALL; RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL;
SELECT pg_catalog.pg_advisory_unlock_all();
UNLISTEN *; DISCARD SEQUENCES; DISCARD TEMP
"""
"""The same effect as DISCARD ALL. That statement is refused inside a transaction, and it would also
deallocate the statements that the driver, or a pooler, has prepared for its own use."""
_HAS_PREPARED = "SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE from_sql)"
_DEALLOCATE = """
DO $$ DECLARE statement text; BEGIN
    FOR statement IN SELECT name FROM pg_prepared_statements WHERE from_sql LOOP
        EXECUTE format('DEALLOCATE %I', statement);
    END LOOP;
END $$
"""
_SET_LOCAL = """
SELECT pg_catalog.set_config(name, setting, true)
  FROM unnest(%(names)s::text[], %(values)s::text[]) AS _(name, setting)
"""
_LIMIT = "SELECT pg_catalog.set_config('statement_timeout', %(limit)s, true)"
_BEGIN_TASK_TRANSACTION = SQL("""
BEGIN; SET LOCAL idle_in_transaction_session_timeout = {silence}; {unlimited}
SELECT pg_catalog.pg_current_xact_id()::text, pg_catalog.current_setting('transaction_read_only')
""")
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_NUMBER = "SELECT pg_catalog.pg_current_xact_id()::text"
_LIMIT_WAIT = "SELECT pg_catalog.set_config('lock_timeout', %(limit)s, true)"
_NUMBER_AND_LIMIT = f"{_NUMBER}, pg_catalog.set_config('lock_timeout', %(limit)s, true)"
_UNLIMITED = SQL("SET LOCAL transaction_timeout = 0;")
_FIRST_WITH_TRANSACTION_TIMEOUT = 170_000
_SILENCE_SECONDS = 1.0
_LONGEST_SILENCE = 2**31 - 1
"""In milliseconds: the largest value that the server accepts."""
_SET_BEFORE_SETTLING = """
SELECT pg_catalog.set_config('search_path', %(search_path)s, true),
       pg_catalog.set_config('role', %(role)s, true),
       pg_catalog.set_config('statement_timeout', %(statement_timeout)s, true),
       pg_catalog.set_config('lock_timeout', %(lock_timeout)s, true),
       pg_catalog.set_config('synchronous_commit', %(durable)s, true),
       pg_catalog.set_config('enable_seqscan', 'off', true),
       pg_catalog.set_config('idle_in_transaction_session_timeout', %(frozen)s, true),
       pg_catalog.pg_current_xact_id()::text
"""


class PostgresSession(psycopg.Connection[tuple[Any, ...]]):
    """A connection that knows its backend, and whether it goes through a pooler."""

    pooled = False
    """True with PgBouncer or a similar pooler. The next transaction may run on another backend, so
    duly keeps no session state."""
    pid = 0
    started: str = ""
    """When the backend started. Together with the pid, it identifies the backend uniquely."""
    server_life: str = ""
    """The time of the last reset of the server's counters. A crash resets them, an orderly stop
    does not. A crash frees the numbers of the transactions that it undid, and the server assigns
    these numbers to other transactions."""
    transaction_number: str | None = None
    """The number of this session's latest transaction. Another session can look it up later."""
    _begins = False
    """True if the next statement opens a transaction."""
    _wait: int | None = None
    """For how many milliseconds that transaction waits for locks, if not for the usual time."""
    _epoch = Epoch()
    _opened_in = 0
    _settings: Mapping[str, str] = {}
    _before_settling: Mapping[str, str | None] = {}
    _forget_all = f"{_FORGET}; {_HAS_PREPARED}"
    _readable: select.poll
    _lone: PreparedStatements
    _channel: str | None = None
    _deaf: psycopg.Cursor[tuple[Any, ...]]
    """One cursor for all statements whose answer is not needed, since a new cursor is expensive."""

    def greet(self, settings: Mapping[str, str], *, seconds: float = GREETING_SECONDS) -> None:
        """Read which backend serves this connection, and apply the settings."""
        ((path, role, longest, longest_lock, pid, encoding, durable, version, life, started),) = (
            execute_within(self, _GREETING, seconds=seconds)
        )
        if encoding != "UTF8":
            raise StoreRefused(
                f"the encoding of the database is {encoding}, which cannot store every text; "
                "create a database with ENCODING 'UTF8'"
            )
        if int(version or 0) < OLDEST_SERVER:
            raise StoreRefused("this PostgreSQL is too old; duly needs 14 or newer")
        self.pid, self.server_life = int(pid or 0), life or ""
        self.pooled = self.pid != self.info.backend_pid
        if not self.pooled:
            self.started = started or self._ask_as_login_role(seconds)
        self._settings = _wanted(settings, durable or "")
        self._before_settling = {
            "search_path": path,
            "role": role,
            "statement_timeout": self._settings.get("statement_timeout", longest),
            "lock_timeout": self._settings.get("lock_timeout", longest_lock),
            "durable": self._settings["synchronous_commit"],
            "frozen": FROZEN,
        }
        if self.pooled:
            self.prepare_threshold = None
        else:
            set_all = self._set_all()
            execute_within(self, set_all, seconds=seconds)
            self._forget_all = f"{_FORGET}; {set_all}; {_HAS_PREPARED}"
        self._readable = select.poll()
        self._readable.register(self.fileno(), select.POLLIN)
        self._lone = PreparedStatements(self)
        self._deaf = self.cursor()

    def _ask_as_login_role(self, seconds: float) -> str:
        """Read when this backend started, if the current role is not allowed to see it."""
        execute_within(self, "BEGIN", seconds=seconds)
        execute_within(self, AS_LOGIN_ROLE, seconds=seconds)
        ((*_, started),) = execute_within(self, _GREETING, seconds=seconds)
        execute_within(self, "COMMIT", seconds=seconds)
        if not started:
            raise StoreRefused(
                "this role cannot see its own session in pg_stat_activity, so duly could not find "
                "out what happened to a lost session; connect as another role"
            )
        return started

    def begin(self) -> None:
        """Open a transaction. With a pooler, apply the settings too."""
        self.execute_unanswered(_BEGIN)
        if self.pooled:
            names, values = texts(self._settings), texts(self._settings.values())
            self.execute_unanswered(_SET_LOCAL, {"names": names, "values": values})

    def begin_with_next_statement(self, wait_milliseconds: int | None = None) -> None:
        """Open a transaction together with its first statement, in one round trip."""
        self._begins, self._wait, self.transaction_number = True, wait_milliseconds, None

    def begin_nothing(self) -> None:
        """Forget a transaction that was to begin with a statement that never came."""
        self._begins = False

    def execute(
        self,
        query: Any,  # noqa: ANN401 - the type that the driver accepts
        params: psycopg.abc.Params | None = None,
        *,
        prepare: bool | None = None,
        binary: bool = False,
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute a statement. Open its transaction first if one was announced."""
        if not self._begins:
            return super().execute(query, params, prepare=prepare, binary=binary)
        self._begins = False
        with self.pipeline():
            self.begin()
            if self._wait is None:
                number = super().execute(_NUMBER)
            else:
                number = super().execute(_NUMBER_AND_LIMIT, {"limit": f"{self._wait}ms"})
            cursor = super().execute(query, params, prepare=prepare, binary=binary)
        ((self.transaction_number, *_),) = number.fetchall()
        return cursor

    def forget_before_end(self) -> None:
        """Undo the session state that the body has left, before a pooler reassigns the backend.

        The session state is settings, locks and prepared statements. A rollback undoes the settings
        in any case.
        """
        if self.pooled and self.info.transaction_status == TransactionStatus.INTRANS:
            self._forget()

    def roll_back(self) -> None:
        """Roll back the body's transaction, and undo the session state that outlives it.

        A failed transaction cannot undo session state before its end. After its end a pooler may
        assign the backend to another client, so one message does both.
        """
        if self.pooled and self.info.transaction_status == TransactionStatus.INERROR:
            self.execute(f"ROLLBACK; {_FORGET}; {_DEALLOCATE}")
        else:
            self.forget_before_end()
            self.rollback()
            if not self.pooled:
                self._forget()

    def _set_all(self) -> str:
        """Return the statement that applies the settings. It can share a message with others."""
        settings = SQL(", ").join(
            SQL("pg_catalog.set_config({}, {}, false)").format(Literal(name), Literal(value))
            for name, value in self._settings.items()
        )
        return SQL("SELECT {}").format(settings).as_string(self)

    def _forget(self) -> None:
        cursor = self.execute(self._forget_all, prepare=False)
        while cursor.nextset():
            pass
        if cursor.fetchone() == (True,):
            self.execute(_DEALLOCATE)

    def commit_now(self) -> None:
        """Commit, also inside a pipeline, where the driver's own `commit` would wait."""
        self.execute_unanswered("COMMIT")

    def execute_unanswered(self, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Execute a statement whose answer is not needed."""
        self._deaf.execute(sql, parameters)

    @contextmanager
    def unprepared(self) -> Iterator[None]:
        """Plan each statement of a block when it runs, for the current size of its tables.

        Use this in sessions with the server's own planner settings. There a cached plan may read a
        whole table, because the table was small when the plan was made.
        """
        kept, self.prepare_threshold = self.prepare_threshold, None
        try:
            yield
        finally:
            self.prepare_threshold = kept

    def begin_task_transaction(self, seconds: float) -> tuple[str, bool]:
        """Open a transaction for a body. Return its number, and whether it can write.

        The server ends the transaction if the client sends nothing for longer than `seconds`,
        because this process may be frozen. A shorter timeout in the server's own settings would end
        a healthy transaction.
        """
        silence = round(min((seconds + _SILENCE_SECONDS) * 1000, _LONGEST_SILENCE))
        is_limited = self.info.server_version >= _FIRST_WITH_TRANSACTION_TIMEOUT
        unlimited = _UNLIMITED if is_limited else SQL("")
        begin = _BEGIN_TASK_TRANSACTION.format(silence=Literal(silence), unlimited=unlimited)
        cursor = self.execute(begin)
        while cursor.nextset():
            pass
        ((number, read_only),) = cursor.fetchall()
        return str(number), read_only == "off"

    def prepare_to_settle(self) -> str:
        """Make the open transaction's commit durable and bounded in time. Return its number.

        The statements after this one are the engine's. They find the engine's tables for any search
        path or role that the body has set. They use only indexes, because plans in a body's session
        may read whole tables.
        """
        ((*_, number),) = self.execute(_SET_BEFORE_SETTLING, self._before_settling).fetchall()
        return str(number)

    def execute_alone(
        self, sql: str, parameters: Mapping[str, Any], *, wait_milliseconds: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement as a transaction of its own, in one round trip."""
        if not self.pooled and wait_milliseconds is None:
            return self._lone.run(sql, parameters)
        with self.pipeline():
            self.begin()
            if wait_milliseconds is not None:
                self.execute_unanswered(_LIMIT_WAIT, {"limit": f"{wait_milliseconds}ms"})
            cursor = self.execute(sql, parameters)
            self.commit_now()
        return cursor.fetchall() if cursor.description is not None else []

    def read_within(
        self, seconds: float, sql: str, parameters: Mapping[str, Any], *, prepare: bool | None
    ) -> list[tuple[Any, ...]]:
        """Execute a statement that reads. The server cancels it if it takes longer than this."""
        limit = f"{max(1, int(seconds * 1000))}ms"
        with self.pipeline():
            self.begin()
            self.execute_unanswered(_LIMIT, {"limit": limit})
            cursor = self.execute(sql, parameters, prepare=prepare)
            self.commit_now()
        return cursor.fetchall()

    def channel(self) -> str:
        """Return the channel of the hints. Every connection reads it, since it contains an oid."""
        if self._channel is None:
            ((self._channel,),) = self.execute_alone("SELECT duly_channel()", {})
        return self._channel or ""

    def bind_to_epoch(self, epoch: Epoch, number: int) -> None:
        """Bind this session to an epoch. The session is unusable once the epoch has advanced."""
        self._epoch, self._opened_in = epoch, number

    @property
    def is_read_only(self) -> bool:
        """True if the server refuses writes. Always False with a pooler: its reports may be old."""
        # The server reports both settings when they change.
        status = self.pgconn.parameter_status
        reported = status(b"in_hot_standby"), status(b"default_transaction_read_only")
        return not self.pooled and b"on" in reported

    def is_alive(self) -> bool:
        """Return whether this session can be used again, without a message to the server.

        A session on a read-only server is not used again. The address may lead to a new primary.
        """
        for _ in range(3):
            if self.closed or self._opened_in != self._epoch.number:
                return False
            if self.is_read_only:
                self._epoch.advance()
                return False
            if not self._readable.poll(0):
                return True
            try:
                self.pgconn.consume_input()
            except psycopg.Error:
                return False
        return not self.closed


def connect(
    address: Address, settings: Mapping[str, str], *, prepare_after: int = 0
) -> PostgresSession:
    """Open a connection. Raise duly's errors instead of the driver's."""
    number = address.epoch.number
    try:
        session = _connect(address, prepare_after)
    except psycopg.Error as error:
        raise translated(error, address) from error
    try:
        session.greet(settings)
        session.bind_to_epoch(address.epoch, number)
    except psycopg.Error as error:
        session.close()
        raise translated(error, address) from error
    except BaseException:
        session.close()
        raise
    return session


def _connect(address: Address, prepare_after: int) -> PostgresSession:
    """Connect to the hosts' current addresses. If a lookup is slow, try the last ones first."""
    connect = partial(PostgresSession.connect, autocommit=True, prepare_threshold=prepare_after)
    found = address.hosts.resolve(address.parameters)
    try:
        session = connect(**found.parameters)
    except psycopg.OperationalError:
        newer = found.newer()
        if newer is None:
            raise
        return connect(**newer)
    # After a failover the old server may be a standby.
    if session.is_read_only and (newer := found.newer()) is not None:
        session.close()
        return connect(**newer)
    return session


def _wanted(settings: Mapping[str, str], durable: str) -> Mapping[str, str]:
    """Return the settings with durable commits, which stay on when the server reloads its own."""
    return {"synchronous_commit": "on" if durable == "off" else durable, **settings}

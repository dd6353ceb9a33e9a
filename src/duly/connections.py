"""Writes on a connection of the caller. The write takes effect if the caller's transaction commits.

The store runs a dialogue: it yields statements and receives the first row of each. An adapter only
passes a statement to one kind of connection and returns the row. No database library is imported
here, because a caller that passes a connection has imported its library.
"""

import re
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from duly.commit_hooks import (
    ASYNC_SESSION_HOOKS,
    DJANGO_HOOKS,
    SESSION_HOOKS,
    CommitHooks,
    Hook,
    suppress_errors,
)
from duly.context import RunConnection, current
from duly.errors import BadOption
from duly.store.ops.runs import Accepted, Enqueue
from duly.store.protocol import A, Dialogue, ExternalStatement, Row, Store

Connection = Any
"""Any object of the libraries: a connection, a session or a result."""


class _ConnectionAdapter(NamedTuple):
    """How one kind of connection executes a statement."""

    module: str
    kind: str
    """The class, as a path below the module."""
    dialect: Callable[[Any], str]
    execute: Callable[[Any, ExternalStatement], Any]
    is_async: bool = False
    hooks: CommitHooks | None = None


def enqueue_dialogue(
    store: Store, op: Enqueue, *, wake: bool
) -> tuple[Callable[..., Dialogue[Accepted]], Hook | None]:
    """Return the dialogue that accepts a run, and a hook to notify workers after the commit."""
    return partial(store.enqueue_on_connection, op), partial(store.wake, op) if wake else None


def execute_dialogue(
    connection: Connection, write: Callable[..., Dialogue[A]], wake: Hook | None = None
) -> A:
    """Run the dialogue over a connection. Call `wake` after its transaction has committed."""
    if isinstance(connection, RunConnection):
        connection = current().connection
    adapter = _adapter_of(connection)
    if adapter.is_async:
        raise BadOption(
            f"{_named(connection)} is asynchronous: await aenqueue(…) or asend_event(…) instead"
        )
    execute: Callable[[Any, ExternalStatement], Row] = adapter.execute
    statements = _checked(adapter, connection, write, wake)
    try:
        statement = next(statements)
        while True:
            statement = statements.send(execute(connection, statement))
    except StopIteration as answer:
        found: A = answer.value
        return found


async def aexecute_dialogue(
    connection: Connection, write: Callable[..., Dialogue[A]], wake: Hook | None = None
) -> A:
    """Run the dialogue over an asynchronous connection, as `execute_dialogue` does."""
    adapter = _adapter_of(connection)
    if not adapter.is_async:
        raise BadOption(
            f"{_named(connection)} blocks the event loop: call enqueue(…) or send_event(…), in a "
            "thread if necessary"
        )
    execute: Callable[[Any, ExternalStatement], Awaitable[Row]] = adapter.execute
    statements = _checked(adapter, connection, write, wake)
    try:
        statement = next(statements)
        while True:
            statement = statements.send(await execute(connection, statement))
    except StopIteration as answer:
        found: A = answer.value
        return found


def _adapter_of(connection: object) -> _ConnectionAdapter:
    for adapter in _ADAPTERS:
        kind: Any = sys.modules.get(adapter.module)
        if kind is not None and isinstance(connection, getattr(kind, adapter.kind)):
            return adapter
    raise BadOption(
        f"connection= takes a connection of sqlite3, psycopg or asyncpg, a Connection or Session "
        f"of SQLAlchemy, sync or async, or one of django.db.connections, not {_named(connection)}"
    )


def _checked(
    adapter: _ConnectionAdapter,
    connection: Connection,
    write: Callable[..., Dialogue[A]],
    wake: Hook | None,
) -> Dialogue[A]:
    """Run the dialogue, with a check of each statement, and let the commit call `wake`.

    If the library has no hook for commits, the dialogue itself sends the hint (`hint=True`).
    """
    hooks = None if wake is None else adapter.hooks
    if hooks is not None and not hooks.are_available(connection):
        hooks = None
    dialogue = write(hint=wake is not None and hooks is None)
    try:
        statement = next(dialogue)
        while True:
            _check(adapter, connection, statement)
            statement = dialogue.send((yield statement))
    except StopIteration as answer:
        if hooks is not None and wake is not None:
            hooks.add(connection, suppress_errors(wake))
        found: A = answer.value
        return found


def _check(adapter: _ConnectionAdapter, connection: object, statement: ExternalStatement) -> None:
    dialect = adapter.dialect(connection)
    if dialect != statement.dialect:
        raise BadOption(
            f"{_named(connection)} is a connection to {dialect}, but runs are stored in "
            f"{statement.dialect}: use a connection to the same database"
        )


def _named(connection: object) -> str:
    kind = type(connection)
    return f"{kind.__module__}.{kind.__qualname__}"


# -- the drivers --


def _on_sqlite3(connection: Connection, statement: ExternalStatement) -> Row:
    cursor = connection.cursor()
    cursor.row_factory = None  # The caller may have set a row factory that does not return tuples.
    row: Row = cursor.execute(statement.sql, statement.parameters).fetchone()
    return row


def _on_psycopg(connection: Connection, statement: ExternalStatement) -> Row:
    with _cursor_of(connection, "Cursor") as cursor:
        row: Row = cursor.execute(statement.sql, statement.parameters).fetchone()
        return row


async def _on_async_psycopg(connection: Connection, statement: ExternalStatement) -> Row:
    async with _cursor_of(connection, "AsyncCursor") as cursor:
        await cursor.execute(statement.sql, statement.parameters)
        row: Row = await cursor.fetchone()
        return row


def _cursor_of(connection: Connection, kind: str) -> Connection:
    """Return a plain cursor. The connection's own may convert parameters or rows differently."""
    psycopg: Any = sys.modules["psycopg"]
    return getattr(psycopg, kind)(connection, row_factory=psycopg.rows.tuple_row)


async def _on_asyncpg(connection: Connection, statement: ExternalStatement) -> Row:
    sql, parameters = _numbered(statement)
    row: Row = await connection.fetchrow(sql, *parameters)
    return row


def _numbered(statement: ExternalStatement) -> tuple[str, tuple[Any, ...]]:
    """Return the statement with $1, $2, … and its parameters in that order."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    sql = re.sub(r"%\((\w+)\)s", number, statement.sql)
    return sql, tuple(statement.parameters[name] for name in names)


# -- SQLAlchemy --


def _on_sqlalchemy(connection: Connection, statement: ExternalStatement) -> Row:
    return _first(connection.exec_driver_sql(*_for_driver(connection, statement)))


def _on_sqlalchemy_session(session: Connection, statement: ExternalStatement) -> Row:
    return _on_sqlalchemy(session.connection(), statement)


async def _on_async_sqlalchemy(connection: Connection, statement: ExternalStatement) -> Row:
    return _first(await connection.exec_driver_sql(*_for_driver(connection, statement)))


async def _on_async_sqlalchemy_session(session: Connection, statement: ExternalStatement) -> Row:
    return await _on_async_sqlalchemy(await session.connection(), statement)


def _for_driver(connection: Connection, statement: ExternalStatement) -> tuple[str, Any]:
    if connection.dialect.driver == "asyncpg":
        return _numbered(statement)
    return statement.sql, statement.parameters


def _first(result: Connection) -> Row:
    row: Row = result.fetchone() if result.returns_rows else None
    return row


# -- Django --


def _on_django(connection: Connection, statement: ExternalStatement) -> Row:
    with connection.cursor() as cursor:
        cursor.execute(statement.sql, statement.parameters)
        row: Row = cursor.fetchone() if cursor.description else None
        return row


def _sqlite(_connection: Connection) -> str:
    return "sqlite"


def _postgresql(_connection: Connection) -> str:
    return "postgresql"


def _by_dialect(connection: Connection) -> str:
    return str(connection.dialect.name)


def _by_bind(session: Connection) -> str:
    return str(session.get_bind().dialect.name)


def _by_vendor(connection: Connection) -> str:
    return str(connection.vendor)


_ADAPTERS = (
    _ConnectionAdapter("sqlite3", "Connection", _sqlite, _on_sqlite3),
    _ConnectionAdapter("psycopg", "Connection", _postgresql, _on_psycopg),
    _ConnectionAdapter("psycopg", "AsyncConnection", _postgresql, _on_async_psycopg, is_async=True),
    _ConnectionAdapter("asyncpg.connection", "Connection", _postgresql, _on_asyncpg, is_async=True),
    _ConnectionAdapter(
        "asyncpg.pool", "PoolConnectionProxy", _postgresql, _on_asyncpg, is_async=True
    ),
    _ConnectionAdapter("sqlalchemy.engine", "Connection", _by_dialect, _on_sqlalchemy),
    _ConnectionAdapter(
        "sqlalchemy.orm", "Session", _by_bind, _on_sqlalchemy_session, hooks=SESSION_HOOKS
    ),
    _ConnectionAdapter(
        "sqlalchemy.orm", "scoped_session", _by_bind, _on_sqlalchemy_session, hooks=SESSION_HOOKS
    ),
    _ConnectionAdapter(
        "sqlalchemy.ext.asyncio",
        "AsyncConnection",
        _by_dialect,
        _on_async_sqlalchemy,
        is_async=True,
    ),
    _ConnectionAdapter(
        "sqlalchemy.ext.asyncio",
        "AsyncSession",
        _by_bind,
        _on_async_sqlalchemy_session,
        is_async=True,
        hooks=ASYNC_SESSION_HOOKS,
    ),
    _ConnectionAdapter(
        "sqlalchemy.ext.asyncio",
        "async_scoped_session",
        _by_bind,
        _on_async_sqlalchemy_session,
        is_async=True,
        hooks=ASYNC_SESSION_HOOKS,
    ),
    _ConnectionAdapter(
        "django.db.backends.base.base",
        "BaseDatabaseWrapper",
        _by_vendor,
        _on_django,
        hooks=DJANGO_HOOKS,
    ),
    _ConnectionAdapter(
        "django.utils.connection", "ConnectionProxy", _by_vendor, _on_django, hooks=DJANGO_HOOKS
    ),
)

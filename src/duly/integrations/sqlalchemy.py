"""A SQLAlchemy Session whose writes commit together with the completion of the current run."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import sqlalchemy
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from duly import current


class _ExternalTransactionDialect:
    """A connection provided by the task transaction. The run ends its transaction and closes it."""

    def do_commit(self, dbapi_connection: Any) -> None: ...  # noqa: ANN401 - SQLAlchemy's own
    def do_rollback(self, dbapi_connection: Any) -> None: ...  # noqa: ANN401
    def do_close(self, dbapi_connection: Any) -> None: ...  # noqa: ANN401
    def do_terminate(self, dbapi_connection: Any) -> None: ...  # noqa: ANN401


class TaskTransactionSQLite(_ExternalTransactionDialect, SQLiteDialect_pysqlite):
    """SQLite, on the connection of a task transaction."""

    supports_statement_cache = True


class TaskTransactionPostgreSQL(_ExternalTransactionDialect, PGDialect_psycopg):
    """PostgreSQL, on the connection of a task transaction."""

    supports_statement_cache = True


registry.register("sqlite.duly", __name__, "TaskTransactionSQLite")
registry.register("postgresql.duly", __name__, "TaskTransactionPostgreSQL")


@contextmanager
def run_session(**options: Any) -> Iterator[Session]:  # noqa: ANN401 - those of a Session
    """Yield a Session on the connection of the current run (`transaction=True`).

    Its writes become part of the run's transaction at the end of the block, and are rolled back if
    the block raises. The session's own `commit` and `rollback` end a savepoint, never the
    transaction.
    """
    # The transaction starts here, not at the first query, as with any session.
    lent = current().connection
    name = "sqlite" if type(lent).__module__.startswith("duly.store.sqlite") else "postgresql"
    engine = _engine(f"{name}+duly://")
    with engine.connect() as connection:
        # SQLAlchemy treats this as the transaction, and the session's writes as part of it.
        connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint", **options) as session:
            yield session
            session.commit()


@cache
def _engine(url: str) -> sqlalchemy.Engine:
    """Return an engine whose connection is that of the current run."""
    return sqlalchemy.create_engine(url, creator=lambda: current().connection, poolclass=NullPool)

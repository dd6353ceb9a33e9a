"""A SQLAlchemy Session whose writes commit with the completion of the run that is current."""

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

from duly.context import current


class _ExternalTransactionDialect:
    """A connection that is lent: its transaction ends with its run, and so does it."""

    def do_commit(self, dbapi_connection: Any) -> None: ...  # noqa: ANN401 - SQLAlchemy's own
    def do_rollback(self, dbapi_connection: Any) -> None: ...  # noqa: ANN401
    def do_close(self, dbapi_connection: Any) -> None: ...  # noqa: ANN401
    def do_terminate(self, dbapi_connection: Any) -> None: ...  # noqa: ANN401


class TaskTransactionSQLite(_ExternalTransactionDialect, SQLiteDialect_pysqlite):
    """SQLite, on a connection that is lent."""

    supports_statement_cache = True


class TaskTransactionPostgreSQL(_ExternalTransactionDialect, PGDialect_psycopg):
    """PostgreSQL, on a connection that is lent."""

    supports_statement_cache = True


registry.register("sqlite.duly", __name__, "TaskTransactionSQLite")
registry.register("postgresql.duly", __name__, "TaskTransactionPostgreSQL")


@contextmanager
def run_session(**options: Any) -> Iterator[Session]:  # noqa: ANN401 - those of a Session
    """Give a Session on the connection of the current run (`transaction=True`).

    What it wrote becomes a part of the run's transaction when the block is left, and is undone if
    that raises. The session's own `commit` and `rollback` end a savepoint, never the transaction.
    """
    # The transaction opens here, not at the first query: that is what a session does, too.
    lent = current().connection
    name = "sqlite" if type(lent).__module__.startswith("duly.store.sqlite") else "postgresql"
    engine = _engine(f"{name}+duly://")
    with engine.connect() as connection:
        # To SQLAlchemy this is the transaction, and what the session does is a part of it.
        connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint", **options) as session:
            yield session
            session.commit()


@cache
def _engine(url: str) -> sqlalchemy.Engine:
    """Return an engine whose connections are those of the runs that ask for one."""
    return sqlalchemy.create_engine(url, creator=lambda: current().connection, poolclass=NullPool)

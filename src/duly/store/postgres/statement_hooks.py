"""Runs a hook at every statement that this process sends to PostgreSQL, for fault injection.

Production code does not use this module. The driver's own connection cannot be wrapped, so the hook
wraps all functions with which the engine and the bodies send statements. The end of a pipeline,
where its statements are answered, counts as one more statement.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import psycopg

from duly.faultpoints import StatementHook
from duly.store.postgres import connection, heartbeats
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.prepared_statements import PreparedStatements

_SQL = 1
"""The position of the statement among the arguments."""


def install_hook(crossing: StatementHook) -> None:
    """Enter `crossing` before every statement and leave it after, until this process ends."""

    def watched(function: Callable[..., Any], named: str | None = None) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - any function
            with crossing(named or str(args[_SQL])):
                return function(*args, **options)

        return call

    for owner, name, said in (
        (psycopg.Cursor, "execute", None),
        (psycopg.Cursor, "executemany", None),
        (psycopg.Pipeline, "__exit__", "(end of a pipeline)"),
        (PostgresSession, "commit", "COMMIT"),
        (PostgresSession, "rollback", "ROLLBACK"),
        (PreparedStatements, "run", None),
        (connection, "execute_within", None),
        (heartbeats, "execute_within", None),
    ):
        setattr(owner, name, watched(getattr(owner, name), said))

"""Tells of every statement that this process sends to PostgreSQL; for proofs that strike there.

Nothing of duly uses it unless asked to. The driver's own connection cannot be wrapped, so this
stands round all that duly and the bodies send statements by. In a pipeline statements are answered
at its end, which counts as one more.
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
"""Where the statement stands among the arguments."""


def install_hook(crossing: StatementHook) -> None:
    """Have `crossing` entered before and left after every statement, until this process ends."""

    def watched(function: Callable[..., Any], named: str | None = None) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever it is
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

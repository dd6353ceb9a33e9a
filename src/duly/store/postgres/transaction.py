"""A transaction on PostgreSQL, as verbs see it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg

from duly.store.ops.runs import Enqueue, Settle, Settled
from duly.store.postgres.arrays import array
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.enqueue import insert
from duly.store.postgres.session_settings import TRY_MILLISECONDS
from duly.store.postgres.settle import settle
from duly.store.statements import load
from duly.store.transaction import Call, Result, Row, Rows

OPERATE = load("postgres", "operate")


class PostgresTransaction:
    """The transaction that is open in a session."""

    def __init__(self, session: PostgresSession) -> None:
        self.session = session

    def execute(self, name: str, /, **parameters: Any) -> Result:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return the number of its rows and the rows."""
        return _result(self.session.execute(statement_text(name), encoded(parameters)))

    def execute_all(self, calls: Sequence[Call]) -> list[Result]:
        """Execute several statements, in one round trip."""
        with self.session.pipeline():
            cursors = [
                self.session.execute(statement_text(name), encoded(parameters))
                for name, parameters in calls
            ]
        return [_result(cursor) for cursor in cursors]

    def run(self, name: str, /, **parameters: Any) -> int:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return the number of rows that it changed or returned."""
        return self.session.execute(statement_text(name), encoded(parameters)).rowcount

    def rows(self, name: str, /, **parameters: Any) -> list[Row]:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return its rows."""
        return self.session.execute(statement_text(name), encoded(parameters)).fetchall()

    def row(self, name: str, /, **parameters: Any) -> Row | None:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return its first row, if it has any."""
        return self.session.execute(statement_text(name), encoded(parameters)).fetchone()

    def value(self, name: str, /, **parameters: Any) -> Any:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return the only value of its only row."""
        ((found,),) = self.session.execute(statement_text(name), encoded(parameters)).fetchall()
        return found

    @contextmanager
    def savepoint(self, name: str) -> Iterator[Callable[[], None]]:
        """Set a savepoint for a block, which ends with the transaction.

        A release would be one more round trip.
        """
        self.session.execute(f"SAVEPOINT {name}")

        def undo() -> None:
            self.session.execute(f"ROLLBACK TO SAVEPOINT {name}")

        yield undo

    @contextmanager
    def lock_timeout(self, milliseconds: int) -> Iterator[None]:
        """Let the statements of a block wait at most this long for locks of other transactions."""
        limit = {"limit": f"{milliseconds}ms"}
        ((usual, _),) = self.session.execute(OPERATE["limit_wait"], limit).fetchall()
        yield
        # A failed statement ends the transaction, and the setting with it.
        self.session.execute(OPERATE["limit_wait"], {"limit": usual})

    def adopt_database(self) -> None:
        """Do nothing, since a database of a server is not a file that can be copied."""

    def coordinate(self, name: str, /, **parameters: Any) -> Row | None:  # noqa: ANN401 - as the protocol
        """Execute a statement that only concurrent writers need. Return its first row."""
        rows = self.execute(name, **parameters).rows
        return rows[0] if rows else None

    def refuse_copy(self) -> None:
        """Do nothing, since a database of a server is not a file that can be copied."""

    def enqueue(self, enqueues: Sequence[Enqueue]) -> None:
        """Accept runs without keys."""
        insert(self.session, enqueues)

    def settle(self, settles: Sequence[Settle]) -> list[Settled]:
        """Record how attempts ended."""
        return settle(self.session, settles) if settles else []


class LoneStatements(PostgresTransaction):
    """A session that commits each statement by itself, and hardly waits for locks.

    A process that is frozen while it renews a lock or a key must not hold the row, or no other
    process could take over.
    """

    def execute(self, name: str, /, **parameters: Any) -> Result:  # noqa: ANN401 - as the protocol
        """Execute a statement and commit it. Only the rows that it returns are counted."""
        rows = self.session.execute_alone(
            statement_text(name), encoded(parameters), wait_milliseconds=TRY_MILLISECONDS
        )
        return Result(len(rows), rows)

    def run(self, name: str, /, **parameters: Any) -> int:  # noqa: ANN401 - as the protocol
        """Execute a statement and commit it, and return the number of rows that it returned."""
        return self.execute(name, **parameters).number


def _result(cursor: psycopg.Cursor[Row]) -> Result:
    return Result(cursor.rowcount, cursor.fetchall() if cursor.description is not None else [])


@cache
def statement_text(name: str) -> str:
    """Return the statement `file.statement`."""
    file, _, statement = name.partition(".")
    return load("postgres", file)[statement]


def encoded(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters in the types that the driver takes: sequences become arrays."""
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, Rows):
            columns = zip(*value.rows, strict=True) if value.rows else ((),) * len(value.columns)
            found |= {
                column: array(items) for column, items in zip(value.columns, columns, strict=True)
            }
        elif isinstance(value, (list, tuple, frozenset)):
            found[name] = array(value)
        else:
            found[name] = value
    return found

"""The part of an open transaction that verbs use, whichever database it is on."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from duly.store.ops.runs import Enqueue, Settle, Settled

Row = tuple[Any, ...]


class Rows(NamedTuple):
    """Many rows as one parameter.

    On SQLite the parameter is a JSON array of arrays. On PostgreSQL each column is an array, and a
    parameter of its own under the name of the column.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]


class Result(NamedTuple):
    """The result of one statement."""

    number: int
    """The number of rows that it changed or returned."""
    rows: list[Row]


class Call(NamedTuple):
    """A statement and its parameters."""

    name: str
    parameters: Mapping[str, Any]


class Transaction(Protocol):
    """An open transaction. Statements are named `file.statement`, as in the folders of SQL.

    The parameters of a statement are texts, numbers, booleans, sequences of these, and `Rows`.
    Times are durations in microseconds, to which the statements add the time of the store.
    """

    def execute(self, name: str, /, **parameters: Any) -> Result:  # noqa: ANN401 - see above
        """Execute a statement, and return the number of its rows and the rows."""
        ...

    def execute_all(self, calls: Sequence[Call]) -> list[Result]:
        """Execute several statements, in one round trip to a server."""
        ...

    def run(self, name: str, /, **parameters: Any) -> int:  # noqa: ANN401 - see above
        """Execute a statement, and return the number of rows that it changed or returned."""
        ...

    def rows(self, name: str, /, **parameters: Any) -> list[Row]:  # noqa: ANN401 - see above
        """Execute a statement, and return its rows."""
        ...

    def row(self, name: str, /, **parameters: Any) -> Row | None:  # noqa: ANN401 - see above
        """Execute a statement, and return its first row, if it has any."""
        ...

    def value(self, name: str, /, **parameters: Any) -> Any:  # noqa: ANN401 - a value of any column
        """Execute a statement, and return the only value of its only row."""
        ...

    def savepoint(self, name: str) -> AbstractContextManager[Callable[[], None]]:
        """Set a savepoint for a block, and return a function that undoes what follows it.

        The name is an identifier that no enclosing savepoint has.
        """
        ...

    def lock_timeout(self, milliseconds: int) -> AbstractContextManager[None]:
        """Let the statements of a block wait at most this long for locks of other transactions.

        On SQLite, they never wait, since one transaction writes at a time.
        """
        ...

    def adopt_database(self) -> None:
        """Record that this database is the store itself, and no longer a copy of another one.

        Only a file can be such a copy, so this does nothing on PostgreSQL.
        """
        ...

    def coordinate(self, name: str, /, **parameters: Any) -> Row | None:  # noqa: ANN401 - see above
        """Execute a statement that is only necessary among several writers, such as a lock.

        Return its first row. SQLite has one writer at a time, so it executes nothing and returns
        None.
        """
        ...

    def refuse_copy(self) -> None:
        """Refuse a worker if this database is a copy of another one with runs that may have run.

        Only a file can be such a copy, so this does nothing on PostgreSQL.
        """
        ...

    def enqueue(self, enqueues: Sequence[Enqueue]) -> None:
        """Accept runs without keys."""
        ...

    def settle(self, settles: Sequence[Settle]) -> list[Settled]:
        """Record how attempts ended."""
        ...

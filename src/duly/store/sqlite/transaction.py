"""A transaction on an SQLite file, as verbs use it."""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from typing import Any

from duly.clock import Clock, boot_id
from duly.store.ops.runs import Enqueue, Settle, Settled
from duly.store.refusal import ValueRefused
from duly.store.sqlite.enqueue import enqueue
from duly.store.sqlite.file_identity import adopt_file, check_for_worker
from duly.store.sqlite.settle import settle
from duly.store.statements import ScriptPart, load
from duly.store.transaction import Call, Result, Row, Rows

_MOST_BINDABLE = frozenset({str, int, float, bool, type(None)})

_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class SqliteTransaction:
    """The transaction that is open on a cursor.

    Statements get the wall time as `:now`. A change of the wall clock must not shorten or extend a
    lease. So statements about leases also get the time since the machine's boot as `:uptime`, and
    the id of that boot as `:boot`.
    """

    def __init__(self, cursor: sqlite3.Cursor, clock: Clock) -> None:
        self.cursor = cursor
        self._clock = clock

    @cached_property
    def now(self) -> int:
        """The wall time of all changes in this transaction."""
        return self._clock.now()

    @cached_property
    def _lease_times(self) -> dict[str, Any]:
        return {"uptime": self._clock.uptime(), "boot": boot_id().hex()}

    def execute(self, name: str, /, **parameters: Any) -> Result:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return the number of its rows and the rows."""
        return Result(*self._execute(name, parameters))

    def execute_all(self, calls: Sequence[Call]) -> list[Result]:
        """Execute several statements."""
        return [self.execute(name, **parameters) for name, parameters in calls]

    def run(self, name: str, /, **parameters: Any) -> int:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return the number of rows that it changed or returned."""
        return self._execute(name, parameters)[0]

    def rows(self, name: str, /, **parameters: Any) -> list[Row]:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return its rows."""
        return self._execute(name, parameters)[1]

    def row(self, name: str, /, **parameters: Any) -> Row | None:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return its first row, if it has any."""
        rows = self._execute(name, parameters)[1]
        return rows[0] if rows else None

    def value(self, name: str, /, **parameters: Any) -> Any:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return the only value of its only row."""
        ((found,),) = self._execute(name, parameters)[1]
        return found

    @contextmanager
    def savepoint(self, name: str) -> Iterator[Callable[[], None]]:
        """Set a savepoint for a block, and release it at the end of the block.

        Each open savepoint makes every write in SQLite slower.
        """
        self.cursor.execute(f"SAVEPOINT {name}")

        def undo() -> None:
            self.cursor.execute(f"ROLLBACK TO {name}")

        yield undo
        self.cursor.execute(f"RELEASE {name}")

    def lock_timeout(self, milliseconds: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing, since only one transaction writes at a time."""
        return nullcontext()

    def adopt_database(self) -> None:
        """Record that this file is the store itself and no longer a copy of another file."""
        adopt_file(self.cursor)

    def coordinate(self, name: str, /, **parameters: Any) -> None:  # noqa: ANN401 - as the protocol
        """Do nothing, since one transaction writes at a time."""

    def refuse_copy(self) -> None:
        """Refuse a worker if this file is a copy of another file, whose runs may have run."""
        check_for_worker(self.cursor)

    def enqueue(self, enqueues: Sequence[Enqueue]) -> None:
        """Accept runs without keys."""
        enqueue(self.cursor, enqueues, self.now)

    def settle(self, settles: Sequence[Settle]) -> list[Settled]:
        """Record the ends of attempts."""
        return settle(self.cursor, settles, self.now)

    def _execute(self, name: str, parameters: Mapping[str, Any]) -> tuple[int, list[Row]]:
        """Execute the parts of a statement.

        Every statement uses this method, so it makes few calls.
        """
        place = encoded(parameters)
        place["now"] = self.now
        if _is_about_a_lease(name):
            place |= self._lease_times
        answer: tuple[int, list[Row]] = 0, []
        for sql, is_answer, stops_if_none, binds_row in script(name):
            cursor = self.cursor.execute(sql, place)
            if cursor.description is None:
                number, rows = cursor.rowcount, []
            else:
                rows = cursor.fetchall()
                number = len(rows)
            if stops_if_none and not number:
                return number, rows
            if binds_row:
                place |= zip((column[0] for column in cursor.description), rows[0], strict=True)
            if is_answer:
                answer = number, rows
        return answer


@cache
def script(name: str) -> tuple[ScriptPart, ...]:
    """Return the parts of the statement with this name."""
    file, _, statement = name.partition(".")
    return load("sqlite", file).script(statement)


@cache
def _is_about_a_lease(name: str) -> bool:
    return any(":uptime" in part.sql or ":boot" in part.sql for part in script(name))


def encoded(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters in the types that the driver accepts."""
    if _MOST_BINDABLE.issuperset(map(type, parameters.values())):
        return dict(parameters)
    return {name: _bindable(value) for name, value in parameters.items()}


def _bindable(value: Any) -> Any:  # noqa: ANN401 - what the driver takes
    if isinstance(value, Rows):
        return _json([list(row) for row in value.rows])
    if isinstance(value, (list, tuple, frozenset)):
        return _json(list(value))
    return value


def _json(items: list[Any]) -> str:
    # A lone surrogate is not escaped, so that the driver refuses it. SQLite would store an escaped
    # surrogate, and the driver could not read it. SQLite also ends a text at an escaped NUL.
    text = json.dumps(items, ensure_ascii=False)
    if _ESCAPED_NUL.search(text):
        raise ValueRefused("a text in a list contains a NUL character; remove it")
    return text

"""A transaction on an SQLite file, as verbs see it."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from duly.clock import Clock
from duly.store.ops.runs import Enqueue, Settle, Settled
from duly.store.sqlite.clock_readings import read_clocks
from duly.store.sqlite.enqueue import enqueue
from duly.store.sqlite.settle import settle
from duly.store.statements import ScriptPart, load
from duly.store.transaction import Call, Result, Row, Rows

_MOST_BINDABLE = frozenset({str, int, float, bool, type(None)})


class SqliteTransaction:
    """The transaction that is open on a cursor.

    Statements get the wall time as `:now`, and for leases, which no change of the wall clock may
    shorten or extend, the time since the machine was started as `:uptime`, and that start as
    `:boot`.
    """

    def __init__(self, cursor: sqlite3.Cursor, clock: Clock) -> None:
        self.cursor = cursor
        self._clock = clock

    @cached_property
    def now(self) -> int:
        """The wall time of everything that this transaction does."""
        return self._clock.now()

    @cached_property
    def _times(self) -> dict[str, Any]:
        return read_clocks(self._clock)._replace(now=self.now)._asdict()

    def execute(self, name: str, /, **parameters: Any) -> Result:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return the number of its rows and the rows."""
        place = encoded(parameters) | self._times
        answer = Result(0, [])
        for part in script(name):
            found = self._execute(part.sql, place)
            if part.is_answer:
                answer = found
            if part.stops_if_none and not found.number:
                return found
        return answer

    def execute_all(self, calls: Sequence[Call]) -> list[Result]:
        """Execute several statements."""
        return [self.execute(name, **parameters) for name, parameters in calls]

    def run(self, name: str, /, **parameters: Any) -> int:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return the number of rows that it changed or returned."""
        return self.execute(name, **parameters).number

    def rows(self, name: str, /, **parameters: Any) -> list[Row]:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return its rows."""
        return self.execute(name, **parameters).rows

    def row(self, name: str, /, **parameters: Any) -> Row | None:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return its first row, if it has any."""
        rows = self.execute(name, **parameters).rows
        return rows[0] if rows else None

    def value(self, name: str, /, **parameters: Any) -> Any:  # noqa: ANN401 - as the protocol
        """Execute a statement, and return the only value of its only row."""
        ((found,),) = self.execute(name, **parameters).rows
        return found

    def enqueue(self, enqueues: Sequence[Enqueue]) -> None:
        """Accept runs without keys."""
        enqueue(self.cursor, enqueues, self.now)

    def settle(self, settles: Sequence[Settle]) -> list[Settled]:
        """Record how attempts ended."""
        return settle(self.cursor, settles, self.now)

    def _execute(self, sql: str, place: Mapping[str, Any]) -> Result:
        cursor = self.cursor.execute(sql, place)
        if cursor.description is None:
            return Result(cursor.rowcount, [])
        rows = cursor.fetchall()
        return Result(len(rows), rows)


@cache
def script(name: str) -> tuple[ScriptPart, ...]:
    """Return the parts of the statement `file.statement`."""
    file, _, statement = name.partition(".")
    return load("duly.store.sqlite", file).script(statement)


def encoded(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters in the types that SQLite takes: sequences become JSON."""
    if _MOST_BINDABLE.issuperset(map(type, parameters.values())):
        return dict(parameters)
    return {name: _bindable(value) for name, value in parameters.items()}


def _bindable(value: Any) -> Any:  # noqa: ANN401 - what the driver takes
    if isinstance(value, Rows):
        return json.dumps([list(row) for row in value.rows], ensure_ascii=False)
    if isinstance(value, (list, tuple, frozenset)):
        return json.dumps(list(value), ensure_ascii=False)
    return value

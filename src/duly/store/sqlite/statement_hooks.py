"""Reports every statement that this process executes on SQLite, for tests that inject faults there.

duly uses this module only on request. Connections that are already open are not watched.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from duly.faultpoints import StatementHook
from duly.store.sqlite.task_connection import SqliteTaskConnection, SqliteTaskCursor


def install_hook(crossing: StatementHook) -> None:
    """Enter `crossing` before every statement and leave it after, until this process ends."""
    plain = sqlite3.connect

    def connect(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - as the driver has it
        kind = options.get("factory", sqlite3.Connection)
        return plain(*args, **options | {"factory": _WATCHED[kind]})

    _watching.crossing = crossing
    sqlite3.connect = connect


@dataclass(slots=True)
class _InstalledHook:
    crossing: StatementHook


_watching = _InstalledHook(lambda _sql: nullcontext())


def _each(sql: str, rows: Iterable[Any]) -> Iterator[Any]:
    """Report every row as one statement, which ends when the driver requests the next row."""
    for row in rows:
        with _watching.crossing(sql):
            yield row


class _HookedCursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = (), /) -> "_HookedCursor":  # noqa: ANN401 - the driver's
        with _watching.crossing(sql):
            super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, rows: Iterable[Any], /) -> "_HookedCursor":
        super().executemany(sql, _each(sql, rows))
        return self


class _HookedConnection(sqlite3.Connection):
    def cursor(self, factory: Any = _HookedCursor) -> Any:  # noqa: ANN401 - as the driver has it
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:  # noqa: ANN401
        cursor: sqlite3.Cursor = self.cursor()
        return cursor.execute(sql, parameters)

    def rollback(self) -> None:
        with _watching.crossing("ROLLBACK"):
            super().rollback()


class _HookedTaskCursor(SqliteTaskCursor):
    def execute(self, sql: str, parameters: Any = (), /) -> "_HookedTaskCursor":  # noqa: ANN401
        with _watching.crossing(sql):
            super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, rows: Iterable[Any], /) -> "_HookedTaskCursor":
        super().executemany(sql, _each(sql, rows))
        return self


class _HookedTaskConnection(SqliteTaskConnection):
    def cursor(self, factory: Any = _HookedTaskCursor) -> Any:  # noqa: ANN401 - as the driver has it
        return super().cursor(factory)


_WATCHED = {sqlite3.Connection: _HookedConnection, SqliteTaskConnection: _HookedTaskConnection}

"""Writes many rows in few statements.

Every step of a statement releases the interpreter lock. When the application is busy, it takes a
switch interval to get the lock back. So one statement writes about a hundred rows.
"""

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

from duly.store.statements import Statements

_SIZES = (1, 8, 32, 64, 128, 256)
"""There are few sizes, so that all of them fit into the driver's statement cache."""


def execute_rows(
    cursor: sqlite3.Cursor,
    statements: Statements,
    name: str,
    rows: Sequence[Sequence[Any]],
    *,
    first: tuple[Any, ...] = (),
    padded: bool = False,
) -> int:
    """Execute a `:rows(n)` statement for all rows; return the number of rows that it changed.

    With `padded`, rows of empty texts fill up the last statement. They must match no row.
    """
    changed = 0
    begin = 0
    while begin < len(rows):
        left = len(rows) - begin
        size = next((size for size in _SIZES if size >= left), _SIZES[-1])
        if not padded and size > left:
            size = max(size for size in _SIZES if size <= left)
        parameters = [*first, *chain.from_iterable(rows[begin : begin + size])]
        if size > left:
            parameters += [""] * ((size - left) * len(rows[0]))
        begin += size
        changed += cursor.execute(statements.for_rows(name, size), parameters).rowcount
    return changed

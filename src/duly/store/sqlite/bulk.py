"""Many rows in few statements.

Every step of a statement hands the interpreter lock over and has to win it back, which takes a
switch interval when the application is busy. So rows travel a hundred at a time, not one.
"""

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

from duly.store.statements import Statements

_SIZES = (100, 10, 1)
"""Few sizes, so that the driver's statement cache knows them all."""


def execute_rows(
    cursor: sqlite3.Cursor,
    statements: Statements,
    name: str,
    rows: Sequence[Sequence[Any]],
    *,
    first: tuple[Any, ...] = (),
) -> int:
    """Run a `:rows(n)` statement over all rows; return how many rows it changed."""
    changed = 0
    begin = 0
    for size in _SIZES:
        while len(rows) - begin >= size:
            chunk = rows[begin : begin + size]
            begin += size
            parameters = (*first, *chain.from_iterable(chunk))
            changed += cursor.execute(statements.for_rows(name, size), parameters).rowcount
    return changed

"""Many rows in few statements.

Every step of a statement hands the interpreter lock over and has to win it back, which takes a
switch interval when the application is busy. So rows travel a hundred at a time, not one.
"""

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

from duly.store.statements import Statements

_SIZES = (1, 8, 32, 64, 128, 256)
"""Few sizes, so that the driver's statement cache knows them all."""


def execute_rows(
    cursor: sqlite3.Cursor,
    statements: Statements,
    name: str,
    rows: Sequence[Sequence[Any]],
    *,
    first: tuple[Any, ...] = (),
    padded: bool = False,
) -> int:
    """Run a `:rows(n)` statement over all rows; return how many rows it changed.

    With `padded` rows of empty texts fill up the last statement; they must match nothing.
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

"""The tables that are moved from one database to another, row by row."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol


class TransferTable(NamedTuple):
    """The rows of a table, in the order of `columns`. Instants are microseconds."""

    name: str
    columns: tuple[str, ...]
    rows: Iterable[tuple[Any, ...]]


class TransferSource(Protocol):
    """The database whose tables are moved."""

    def tables(self) -> Iterator[TransferTable]: ...
    def row_count(self) -> int: ...
    def latest_fence(self) -> int: ...
    def close_for_good(self, target: str) -> None: ...

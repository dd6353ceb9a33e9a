"""What is moved from one database to another: every table, row by row."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol


class TransferTable(NamedTuple):
    """Rows with instants as microseconds, in the order of their columns."""

    name: str
    columns: tuple[str, ...]
    rows: Iterable[tuple[Any, ...]]


class TransferSource(Protocol):
    """Where everything is read."""

    def tables(self) -> Iterator[TransferTable]: ...
    def row_count(self) -> int: ...
    def latest_fence(self) -> int: ...
    def close_for_good(self, target: str) -> None: ...

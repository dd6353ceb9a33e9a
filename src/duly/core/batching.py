"""Parts what is written into batches that neither hold too much nor too many."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batches(
    items: Iterable[T], *, most: int, most_characters: int, size_of: Callable[[T], int]
) -> Iterator[list[T]]:
    """Give the items in order; a batch ends with the item that reaches either bound."""
    batch: list[T] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if len(batch) >= most or size >= most_characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

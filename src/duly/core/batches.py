"""Splits the items of a write into batches, by number and by bytes."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

MOST_BYTES_PER_CHARACTER = 4


def batches(
    items: Iterable[T], *, most: int, most_bytes: int, size_of: Callable[[T], int]
) -> Iterator[list[T]]:
    """Yield the items in order. A batch ends with the item that reaches either bound."""
    batch: list[T] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if len(batch) >= most or size >= most_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def bytes_of(text: str | None) -> int:
    """Return the number of bytes that a text takes in the store and on its way there."""
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))

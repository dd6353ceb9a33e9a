"""The counts of a demo: a row of numbers for each kind of work, and their sums."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol


class NamedTupleLike(Protocol):
    """A named tuple with its fields by name."""

    def _asdict(self) -> dict[str, Any]: ...


class DemoOutcome(NamedTupleLike, Protocol):
    """The result of a demo, and whether it is as promised."""

    @property
    def holds(self) -> bool: ...


def sums(rows: Iterable[tuple[Any, ...]]) -> Iterator[int]:
    """Return the sums of all columns after the kind."""
    _kinds, *columns = zip(*rows, strict=True)
    return map(sum, columns)


def document(
    result: DemoOutcome, rows: Sequence[NamedTupleLike], total: NamedTupleLike
) -> dict[str, Any]:
    """Return the result of a demo as JSON data."""
    return result._asdict() | {
        "rows": [row._asdict() for row in rows],
        "total": total._asdict(),
        "holds": result.holds,
    }

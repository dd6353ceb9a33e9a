"""Counts runs by their present state: an end does not count after an operator took it back.

A count is never changed. When an operator retries or discards a run, the store counts that too. The
state of such a count is the change and the end that it took back: "redriven failed".
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from duly.core.record import FinishedRunsByTask, FinishedRunsByTime
from duly.core.states import State

REDRIVEN = "redriven"
DISCARDED = "discarded"
_SUMS = frozenset({"runs", "elapsed", "delay", "lasted"})

_Counts = TypeVar("_Counts", FinishedRunsByTime, FinishedRunsByTask)


def every_end(counts: Iterable[_Counts]) -> list[_Counts]:
    """Return the counts of ends, including those that an operator took back."""
    return [row for row in counts if " " not in row.state]


def present_ends(counts: Iterable[_Counts]) -> list[_Counts]:
    """Return the counts of runs by the state that they are in now."""
    found: dict[tuple[Any, ...], _Counts] = {}
    for row in counts:
        change, _, ended_as = row.state.rpartition(" ")
        if change:
            _add(found, row._replace(state=ended_as), -1)
        if change != REDRIVEN:
            _add(found, row._replace(state=State.CANCELLED) if change else row, 1)
    return [row for row in found.values() if row.runs > 0]


def _add(found: dict[tuple[Any, ...], _Counts], row: _Counts, sign: int) -> None:
    values = row._asdict()
    kind = tuple(value for name, value in values.items() if name not in _SUMS)
    known = found[kind]._asdict() if kind in found else {}
    sums: dict[str, Any] = {
        name: known.get(name, 0) + sign * value for name, value in values.items() if name in _SUMS
    }
    found[kind] = row._replace(**sums)

"""The part of a ledger that dead letters need, and one that makes its calls on a thread."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from duly.core.record import DeadLetterGroup
from duly.store.guard_ops import DeadLetterRecord, GuardOp
from duly.store.protocol import DeadLetterFilter, Ledger

T = TypeVar("T")


class DeadLetterLedger(Protocol):
    """The part of a ledger that dead letters need."""

    def apply(self, ops: Sequence[GuardOp]) -> list[Any]: ...
    def list_dead_letters(self, which: DeadLetterFilter) -> list[DeadLetterRecord]: ...
    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]: ...


class LedgerCall(Protocol):
    """Calls a function with the ledger."""

    def __call__(self, act: Callable[[Ledger], T], /) -> T: ...


class ThreadedLedger:
    """A ledger for dead letters that makes every call through a function."""

    def __init__(self, ask: LedgerCall) -> None:
        self._call = ask

    def apply(self, ops: Sequence[GuardOp]) -> list[Any]:
        """Write the ops, each atomically, and return their answers, in order."""
        return self._call(lambda ledger: ledger.apply(ops))

    def list_dead_letters(self, which: DeadLetterFilter) -> list[DeadLetterRecord]:
        """Return the matching dead letters, newest first."""
        return self._call(lambda ledger: ledger.list_dead_letters(which))

    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]:
        """Return the matching dead letters, grouped by what they have in common."""
        return self._call(lambda ledger: ledger.list_dead_letter_groups(which))

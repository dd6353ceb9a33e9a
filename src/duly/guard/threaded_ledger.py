"""The part of a ledger that letters need, and one of which each call is asked of a clerk."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from duly.core.record import DeadLetterGroup
from duly.store.guard_ops import DeadLetterRecord, GuardOp
from duly.store.protocol import DeadLetterFilter, Ledger

T = TypeVar("T")


class DeadLetterLedger(Protocol):
    """What letters need of a ledger."""

    def apply(self, ops: Sequence[GuardOp]) -> list[Any]: ...
    def list_dead_letters(self, which: DeadLetterFilter) -> list[DeadLetterRecord]: ...
    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]: ...


class LedgerCall(Protocol):
    """Does something with the ledger."""

    def __call__(self, act: Callable[[Ledger], T], /) -> T: ...


class ThreadedLedger:
    """A ledger for letters, behind who is asked."""

    def __init__(self, ask: LedgerCall) -> None:
        self._call = ask

    def apply(self, ops: Sequence[GuardOp]) -> list[Any]:
        """Write the ops, each whole or not at all, and return their answers, in order."""
        return self._call(lambda ledger: ledger.apply(ops))

    def list_dead_letters(self, which: DeadLetterFilter) -> list[DeadLetterRecord]:
        """Return the letters that fit, newest first."""
        return self._call(lambda ledger: ledger.list_dead_letters(which))

    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]:
        """Return the letters that fit, by what they have in common."""
        return self._call(lambda ledger: ledger.list_dead_letter_groups(which))

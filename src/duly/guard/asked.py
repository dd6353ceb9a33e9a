"""The part of a ledger that letters need, and one of which each call is asked of a clerk."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from duly.core.record import DeadGroup
from duly.store.guard_ops import GuardOp, Letter
from duly.store.protocol import Ledger, LetterFilter

T = TypeVar("T")


class LetterLedger(Protocol):
    """What letters need of a ledger."""

    def apply(self, ops: Sequence[GuardOp]) -> list[Any]: ...
    def list_letters(self, which: LetterFilter) -> list[Letter]: ...
    def list_letter_groups(self, which: LetterFilter) -> list[DeadGroup]: ...


class Asking(Protocol):
    """Does something with the ledger."""

    def __call__(self, act: Callable[[Ledger], T], /) -> T: ...


class AskedLedger:
    """A ledger for letters, behind who is asked."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask

    def apply(self, ops: Sequence[GuardOp]) -> list[Any]:
        """Write the ops, each whole or not at all, and return their answers, in order."""
        return self._ask(lambda ledger: ledger.apply(ops))

    def list_letters(self, which: LetterFilter) -> list[Letter]:
        """Return the letters that fit, newest first."""
        return self._ask(lambda ledger: ledger.list_letters(which))

    def list_letter_groups(self, which: LetterFilter) -> list[DeadGroup]:
        """Return the letters that fit, by what they have in common."""
        return self._ask(lambda ledger: ledger.list_letter_groups(which))

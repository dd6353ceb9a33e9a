"""The part of a ledger that dead letters need, and one that makes its calls on a thread."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from duly.core.record import DeadLetterGroup
from duly.store.ops.guard import DeadLetterRecord
from duly.store.ops.op import A, Op, OpWriter
from duly.store.protocol import Ledger
from duly.store.reads import DeadLetterFilter

T = TypeVar("T")


class DeadLetterLedger(Protocol):
    """The part of a ledger that dead letters need."""

    def do(self, op: Op[A]) -> A: ...
    def apply(self, ops: Sequence[Op[A]]) -> list[A]: ...
    def list_dead_letters(self, which: DeadLetterFilter) -> list[DeadLetterRecord]: ...
    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]: ...


class LedgerCall(Protocol):
    """Calls a function with the ledger."""

    def __call__(self, act: Callable[[Ledger], T], /) -> T: ...


class ThreadedLedger(OpWriter):
    """A ledger for dead letters that makes every call through a function."""

    def __init__(self, ask: LedgerCall) -> None:
        self._call = ask

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        """Carry out the ops, each atomically, and return their answers, in order."""
        return self._call(lambda ledger: ledger.apply(ops))

    def list_dead_letters(self, which: DeadLetterFilter) -> list[DeadLetterRecord]:
        """Return the matching dead letters, newest first."""
        return self._call(lambda ledger: ledger.list_dead_letters(which))

    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]:
        """Return the matching dead letters, grouped by what they have in common."""
        return self._call(lambda ledger: ledger.list_dead_letter_groups(which))

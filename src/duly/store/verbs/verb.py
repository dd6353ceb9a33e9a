"""Which function carries out which op."""

from collections.abc import Callable
from typing import Any, TypeVar

from duly.store.ops.op import A, Op
from duly.store.transaction import Transaction

Verb = Callable[[Transaction, Any], Any]
VerbT = TypeVar("VerbT", bound=Verb)

_VERBS: dict[type, Verb] = {}


def verb(kind: type[Op[A]]) -> Callable[[Callable[[Transaction, Any], A]], Verb]:
    """Make a function the one that carries out an op, inside a transaction."""

    def register(carry_out: Callable[[Transaction, Any], A]) -> Verb:
        _VERBS[kind] = carry_out
        return carry_out

    return register


def carry_out(transaction: Transaction, op: Op[A]) -> A:
    """Carry out an op, and return its answer."""
    answer: A = _VERBS[type(op)](transaction, op)
    return answer

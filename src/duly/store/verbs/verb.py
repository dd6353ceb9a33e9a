"""Which function carries out which op."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from duly.store.ops.op import A, Op
from duly.store.ops.upkeep import DutyTurn
from duly.store.transaction import Transaction

Verb = Callable[[Transaction, Any], Any]

_VERBS: dict[type, Verb] = {}

_LONGEST_DUTY = "300s"
"""The time limit of a statement in a transaction that holds a duty, for one row."""
_LONGEST_BATCH = "100ms"
"""The same for several rows. The service tries again with fewer."""


def verb(kind: type[Op[A]]) -> Callable[[Callable[[Transaction, Any], A]], Verb]:
    """Make a function the one that carries out an op, inside a transaction.

    If the op has a turn, the function is called only if this worker has the duty.
    """

    def register(carry_out: Callable[[Transaction, Any], A]) -> Verb:
        has_turns = "turn" in getattr(kind, "_fields", ())
        _VERBS[kind] = _in_turn(carry_out) if has_turns else carry_out
        return carry_out

    return register


def carry_out(transaction: Transaction, op: Op[A]) -> A:
    """Carry out an op, and return its answer."""
    answer: A = _VERBS[type(op)](transaction, op)
    return answer


def is_bounded(op: Any) -> bool:  # noqa: ANN401 - of any kind
    """Return whether an op is a batch that a service can repeat with fewer rows."""
    return getattr(op, "turn", None) is not None and getattr(op, "limit", 1) > 1


def _in_turn(verb: Verb) -> Verb:
    @wraps(verb)
    def carry_out_in_turn(transaction: Transaction, op: Any) -> Any:  # noqa: ANN401 - of any kind
        longest = _LONGEST_BATCH if is_bounded(op) else _LONGEST_DUTY
        return verb(transaction, op) if _has_turn(transaction, op.turn, longest) else None

    return carry_out_in_turn


def _has_turn(transaction: Transaction, turn: DutyTurn | None, longest: str) -> bool:
    """Return whether this worker has a duty now. If so, hold its lock until the commit."""
    if turn is None:
        return True
    place = turn._asdict() | {"longest": longest}
    if turn.seconds:
        found = transaction.coordinate("tick.take_turn", **place)
    else:
        found = transaction.coordinate("tick.lock_duty", **place)
    return found is None or bool(found[0])

"""How many bytes of payload an op writes, so that a commit can be bounded by them."""

from collections.abc import Callable
from typing import Any

from duly.core.batches import bytes_of
from duly.core.verdict import Finish
from duly.store.ops import AddLogs, Enqueue, Op, RestoreLogs, Settle
from duly.store.step_ops import EndStep


def size_of(op: Op) -> int:
    """Return about how many bytes of payload an op writes."""
    if isinstance(op, Enqueue):
        # By far the most frequent, in commits of thousands.
        return bytes_of(op.arguments)
    return _SIZES.get(type(op), _size_of_texts)(op)


def _size_of_settle(op: Settle) -> int:
    verdict = op.verdict
    result = verdict.result if type(verdict) is Finish else None
    size = 0 if result is None else bytes_of(result)
    return size if op.error is None else size + sum(map(bytes_of, op.error))


def _size_of_step(op: EndStep) -> int:
    return bytes_of(op.result)


def _size_of_logs(op: AddLogs | RestoreLogs) -> int:
    return sum(bytes_of(message) for _, _, message in op.lines)


def _size_of_texts(op: Op) -> int:
    return sum(bytes_of(field) for field in op if type(field) is str)


_SIZES: dict[type, Callable[[Any], int]] = {
    Settle: _size_of_settle,
    EndStep: _size_of_step,
    AddLogs: _size_of_logs,
    RestoreLogs: _size_of_logs,
}

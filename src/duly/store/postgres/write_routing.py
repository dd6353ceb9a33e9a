"""Routes ops: which of them share a commit, how they are written, and in which order."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from duly.store.ops.carriers import RerouteRuns
from duly.store.ops.guard import AcquireKey, FailKey, FinishKey, ForgetKey, RenewKey
from duly.store.ops.locks import RenewLock
from duly.store.ops.op import FACTS, AnyOp, Phase
from duly.store.ops.op import is_alone as is_op_alone
from duly.store.ops.op import size_of as size_of_op
from duly.store.ops.operators import LimitQueue, PauseQueue, SetQueueCapacity
from duly.store.ops.recovery import Recover, RecoverOrphans
from duly.store.ops.runs import Enqueue
from duly.store.ops.schedules import FireSchedules
from duly.store.ops.steps import RecheckWaits
from duly.store.ops.upkeep import Prune, RollUpCounts, Tick
from duly.store.postgres.reconnecting_connection import ReconnectingConnection

PATHS = {
    Phase.UPDATE: "operate",
    Phase.SETTLE: "settle",
    Phase.ENQUEUE: "enqueue",
    Phase.OPERATE: "operate",
    Phase.CLAIM: "claim",
}
"""How ops are written. Enqueues with a key, events and renewals use "keyed"."""

RENEWALS = (RenewLock, RenewKey)
"""Each of these ops is one statement, which is its own transaction."""


SERVICES = (
    FireSchedules,
    Prune,
    RecheckWaits,
    Recover,
    RecoverOrphans,
    RerouteRuns,
    RollUpCounts,
    Tick,
)
"""A service repeats these ops. So they hardly wait for locks, and share no commit with others."""

_LOCKED_ROWS: dict[type, str] = {
    PauseQueue: "queue",
    LimitQueue: "queue",
    SetQueueCapacity: "queue",
    AcquireKey: "key",
    FinishKey: "key",
    FailKey: "key",
    ForgetKey: "key",
}
"""The field that names the row which an op locks, if that is not the row of a run."""


class Use(NamedTuple):
    """Work on a connection that is not an op."""

    work: Callable[[ReconnectingConnection], Any]


class WritePart(NamedTuple):
    """Ops of one call that are written together, and their places in the call."""

    path: str
    places: list[int]
    ops: list[AnyOp]


def parts_of(written: Sequence[AnyOp]) -> list[WritePart]:
    """Divide the ops by the path that writes them, in the order of their phases."""
    phases = [FACTS[type(op)].phase for op in written]
    parts = []
    for phase in sorted(set(phases)):
        places = [place for place, found in enumerate(phases) if found == phase]
        own = [written[place] for place in places]
        parts.append(WritePart(path_of(own), places, own))
    return parts


def is_alone(op: AnyOp) -> bool:
    """Return whether a write shares no commit with others."""
    return isinstance(op, Use) or is_op_alone(op)


def size_of(op: AnyOp) -> int:
    """Return about how many bytes of payload a write has."""
    return 0 if isinstance(op, Use) else size_of_op(op)


def path_of(written: Sequence[AnyOp]) -> str:
    """Return how ops of one phase are written."""
    if isinstance(written[0], Use):
        return "use"
    if any(isinstance(op, SERVICES) for op in written):
        return "serve"
    name = PATHS[FACTS[type(written[0])].phase]
    if name == "enqueue" and any(not isinstance(op, Enqueue) or op.key for op in written):
        # Ops that were submitted together are written together.
        return "keyed"
    return name


def lock_order(op: AnyOp) -> tuple[Phase, str, str]:
    """Return the place of an op in a transaction: all transactions lock rows in one order.

    Ops about the same row keep the order of the call.
    """
    field = _LOCKED_ROWS.get(type(op), "run_id")
    return FACTS[type(op)].phase, str(getattr(op, field, "")), field


def transactions_of(written: Sequence[AnyOp]) -> list[list[int]]:
    """Return the places of the ops that share a transaction, in the order of the ops."""
    found: list[list[int]] = [[]]
    for place, op in enumerate(written):
        if is_op_alone(op):
            found += [[place], []]
        else:
            found[-1].append(place)
    return [places for places in found if places]

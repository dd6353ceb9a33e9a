"""Routes ops: which of them share a commit, how they are written, and in which order."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from duly.store.ops.carriers import RerouteRuns
from duly.store.ops.guard import AcquireKey, FailKey, FinishKey, ForgetKey, RenewKey
from duly.store.ops.locks import RenewLock
from duly.store.ops.op import FACTS, AnyOp, Phase, is_alone
from duly.store.ops.operators import LimitQueue, PauseQueue, SetQueueCapacity
from duly.store.ops.recovery import Recover, RecoverOrphans
from duly.store.ops.runs import Enqueue, EnqueueAgain
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

_ENQUEUES = {Enqueue, EnqueueAgain}
_key_of = attrgetter("key")
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
    """Work on a connection that is not an op. It shares no commit."""

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


def path_of(written: Sequence[AnyOp]) -> str:
    """Return how ops of one phase are written."""
    kinds = set(map(type, written))
    if not kinds.isdisjoint(SERVICES):
        return "serve"
    name = PATHS[FACTS[type(written[0])].phase]
    if name == "enqueue" and (kinds - _ENQUEUES or any(map(_key_of, written))):
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
    for place, each in enumerate(written):
        if is_alone(each):
            found += [[place], []]
        else:
            found[-1].append(place)
    return [places for places in found if places]

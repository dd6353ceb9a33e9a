"""Which function carries out an op, and by which clocks."""

import sqlite3
from collections.abc import Callable
from typing import Any

from duly.store.ops.carriers import ClaimCarried, HandOver, PostponeHandOver, RerouteRuns
from duly.store.ops.runs import ClaimRuns, Enqueue, EnqueueAgain, Settle
from duly.store.ops.steps import (
    BeginStep,
    EndStep,
    ForgetStep,
    RecheckWaits,
    SendEvent,
    WakeRuns,
)
from duly.store.ops.upkeep import Prune, RegisterWorker, Tick
from duly.store.sqlite import (
    carried_runs,
    claim,
    enqueue,
    maintenance,
    settle,
    steps,
)

Verb = Callable[[sqlite3.Cursor, Any, Any], Any]

BATCHED: dict[type, Callable[[sqlite3.Cursor, Any, int], list[Any]]] = {
    Enqueue: enqueue.enqueue,
    EnqueueAgain: enqueue.enqueue,
    Settle: settle.settle,
}
SINGLE: dict[type, Verb] = {
    RegisterWorker: maintenance.register,
    BeginStep: steps.begin,
    EndStep: steps.end,
    ForgetStep: steps.forget,
    SendEvent: steps.send_event,
    WakeRuns: steps.wake,
    RecheckWaits: steps.recheck,
    RerouteRuns: carried_runs.reroute,
    HandOver: carried_runs.hand_over,
    PostponeHandOver: carried_runs.postpone_hand_over,
    Tick: maintenance.tick,
    Prune: maintenance.prune,
    ClaimRuns: claim.claim,
    ClaimCarried: claim.claim_carried,
}
CLAIMING = (ClaimRuns, ClaimCarried)
BY_BOTH_CLOCKS = (Prune,)
"""Their leases are by the uptime, and the time for which they are kept is by the wall clock."""

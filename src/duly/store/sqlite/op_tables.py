"""Which function carries out an op, and by which clocks."""

import sqlite3
from collections.abc import Callable
from typing import Any

from duly.store.ops.carriers import ClaimCarried
from duly.store.ops.runs import ClaimRuns, Enqueue, EnqueueAgain, Settle
from duly.store.ops.upkeep import RegisterWorker, Tick
from duly.store.sqlite import (
    claim,
    enqueue,
    maintenance,
    settle,
)

Verb = Callable[[sqlite3.Cursor, Any, Any], Any]

BATCHED: dict[type, Callable[[sqlite3.Cursor, Any, int], list[Any]]] = {
    Enqueue: enqueue.enqueue,
    EnqueueAgain: enqueue.enqueue,
    Settle: settle.settle,
}
SINGLE: dict[type, Verb] = {
    RegisterWorker: maintenance.register,
    Tick: maintenance.tick,
    ClaimRuns: claim.claim,
    ClaimCarried: claim.claim_carried,
}
CLAIMING = (ClaimRuns, ClaimCarried)

"""Which function carries out an op, and by which clocks."""

import sqlite3
from collections.abc import Callable
from typing import Any

from duly.store.ops.bulk import AdvanceBulk, StartBulk, TakeBulk
from duly.store.ops.carriers import ClaimCarried
from duly.store.ops.operators import (
    Cancel,
    DiscardDead,
    InterruptRestored,
    LimitQueue,
    PauseQueue,
    RecordAuditEntry,
    ResetKey,
    RetryRun,
    SetQueueCapacity,
)
from duly.store.ops.runs import ClaimRuns, Enqueue, EnqueueAgain, Settle
from duly.store.ops.steps import ResolveStep
from duly.store.ops.updates import AddLogs, RestoreLogs, SetProgress
from duly.store.ops.upkeep import Prune, RegisterWorker, RollUpCounts, Tick
from duly.store.sqlite import (
    bulk_actions,
    claim,
    enqueue,
    maintenance,
    operate,
    restore,
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
    SetProgress: operate.set_progress,
    AddLogs: operate.add_logs,
    RestoreLogs: operate.restore_logs,
    Cancel: operate.cancel,
    RetryRun: operate.retry_run,
    DiscardDead: operate.discard_dead,
    PauseQueue: operate.pause_queue,
    ResetKey: operate.reset_key,
    RecordAuditEntry: operate.record_audit_entry,
    StartBulk: bulk_actions.start,
    AdvanceBulk: bulk_actions.advance,
    TakeBulk: bulk_actions.take_over,
    ResolveStep: steps.resolve,
    InterruptRestored: restore.interrupt_restored,
    LimitQueue: operate.limit_queue,
    SetQueueCapacity: operate.set_queue_capacity,
    Tick: maintenance.tick,
    Prune: maintenance.prune,
    RollUpCounts: maintenance.roll_up_counts,
    ClaimRuns: claim.claim,
    ClaimCarried: claim.claim_carried,
}
CLAIMING = (ClaimRuns, ClaimCarried)
BY_BOTH_CLOCKS = (Prune,)
"""Their leases are by the uptime, and the time for which they are kept is by the wall clock."""

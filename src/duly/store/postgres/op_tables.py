"""Which function carries out an op."""

from collections.abc import Callable
from typing import Any

from duly.store.ops.bulk import AdvanceBulk, StartBulk, TakeBulk
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
from duly.store.ops.steps import ResolveStep
from duly.store.ops.updates import AddLogs, RestoreLogs, SetProgress
from duly.store.ops.upkeep import Prune, RegisterWorker, RollUpCounts, Tick
from duly.store.postgres import (
    bulk_actions,
    maintenance,
    operate,
    restore,
    steps,
)
from duly.store.postgres.connection import PostgresSession

Verb = Callable[[PostgresSession, Any], Any]

OPERATIONS: dict[type, Verb] = {
    RegisterWorker: maintenance.register,
    SetProgress: operate.set_progress,
    AddLogs: operate.add_logs,
    RestoreLogs: operate.restore_logs,
    ResolveStep: steps.resolve,
    Cancel: operate.cancel,
    RetryRun: operate.retry_run,
    DiscardDead: operate.discard_dead,
    PauseQueue: operate.pause_queue,
    ResetKey: operate.reset_key,
    RecordAuditEntry: operate.record_audit_entry,
    StartBulk: bulk_actions.start,
    AdvanceBulk: bulk_actions.advance,
    TakeBulk: bulk_actions.take_over,
    InterruptRestored: restore.interrupt_restored,
    LimitQueue: operate.limit_queue,
    SetQueueCapacity: operate.set_queue_capacity,
    Tick: maintenance.tick,
    Prune: maintenance.prune,
    RollUpCounts: maintenance.roll_up_counts,
}

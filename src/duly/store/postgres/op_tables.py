"""Which function carries out an op."""

from collections.abc import Callable
from typing import Any

from duly.store.ops.bulk import AdvanceBulk, StartBulk, TakeBulk
from duly.store.ops.carriers import HandOver, PostponeHandOver, RerouteRuns
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
from duly.store.ops.steps import (
    BeginStep,
    EndStep,
    ForgetStep,
    RecheckWaits,
    ResolveStep,
    WakeRuns,
)
from duly.store.ops.updates import AddLogs, RestoreLogs, SetProgress
from duly.store.ops.upkeep import Prune, RegisterWorker, Tick
from duly.store.postgres import (
    bulk_actions,
    carried_runs,
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
    BeginStep: steps.begin,
    EndStep: steps.end,
    ForgetStep: steps.forget,
    WakeRuns: steps.wake,
    RecheckWaits: steps.recheck,
    RerouteRuns: carried_runs.reroute,
    HandOver: carried_runs.hand_over,
    PostponeHandOver: carried_runs.postpone_hand_over,
    InterruptRestored: restore.interrupt_restored,
    LimitQueue: operate.limit_queue,
    SetQueueCapacity: operate.set_queue_capacity,
    Tick: maintenance.tick,
    Prune: maintenance.prune,
}

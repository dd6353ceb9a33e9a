"""Which function carries out an op, when, and on which connection."""

from collections.abc import Callable
from typing import Any

from duly.store import (
    admin_ops,
    bulk_ops,
    carrier_ops,
    guard_ops,
    lock_ops,
    ops,
    schedule_ops,
    step_ops,
)
from duly.store.postgres import (
    bulk_actions,
    carried_runs,
    guard,
    locks,
    maintenance,
    operate,
    restore,
    schedules,
    steps,
)
from duly.store.postgres.connection import PostgresSession

Verb = Callable[[PostgresSession, Any], Any]

OPERATIONS: dict[type, tuple[str, Verb]] = {
    ops.RegisterWorker: ("operate", maintenance.register),
    ops.SetProgress: ("operate", operate.set_progress),
    ops.AddLogs: ("operate", operate.add_logs),
    ops.RestoreLogs: ("operate", operate.restore_logs),
    step_ops.ResolveStep: ("operate", steps.resolve),
    ops.Cancel: ("operate", operate.cancel),
    ops.RetryRun: ("operate", operate.retry_run),
    ops.DiscardDead: ("operate", operate.discard_dead),
    ops.PauseQueue: ("operate", operate.pause_queue),
    ops.ResetKey: ("operate", operate.reset_key),
    admin_ops.RecordAuditEntry: ("operate", operate.record_audit_entry),
    bulk_ops.StartBulk: ("operate", bulk_actions.start),
    bulk_ops.AdvanceBulk: ("operate", bulk_actions.advance),
    bulk_ops.TakeBulk: ("operate", bulk_actions.take_over),
    ops.Recover: ("recover", maintenance.recover),
    ops.RecoverOrphans: ("recover", maintenance.recover_orphans),
    schedule_ops.PutSchedule: ("operate", schedules.put),
    schedule_ops.SetScheduleState: ("operate", schedules.set_state),
    schedule_ops.RunSchedule: ("operate", schedules.run_now),
    schedule_ops.BackfillSchedule: ("operate", schedules.backfill),
    schedule_ops.FireSchedules: ("operate", schedules.fire),
    lock_ops.AcquireLock: ("operate", locks.acquire),
    lock_ops.ReleaseLock: ("operate", locks.release),
    guard_ops.FinishKey: ("operate", guard.finish),
    guard_ops.FailKey: ("operate", guard.fail),
    guard_ops.ForgetKey: ("operate", guard.forget),
    guard_ops.AcquireKey: ("operate", guard.acquire),
    guard_ops.PutDeadLetter: ("operate", guard.put_dead_letter),
    guard_ops.EndDeadLetter: ("operate", guard.end_dead_letter),
    step_ops.BeginStep: ("operate", steps.begin),
    step_ops.EndStep: ("operate", steps.end),
    step_ops.ForgetStep: ("operate", steps.forget),
    step_ops.WakeRuns: ("operate", steps.wake),
    step_ops.RecheckWaits: ("operate", steps.recheck),
    carrier_ops.RerouteRuns: ("operate", carried_runs.reroute),
    carrier_ops.HandOver: ("operate", carried_runs.hand_over),
    carrier_ops.PostponeHandOver: ("operate", carried_runs.postpone_hand_over),
    admin_ops.InterruptRestored: ("operate", restore.interrupt_restored),
    admin_ops.LimitQueue: ("operate", operate.limit_queue),
    admin_ops.SetQueueCapacity: ("operate", operate.set_queue_capacity),
    ops.Tick: ("operate", maintenance.tick),
    ops.Prune: ("operate", maintenance.prune),
    ops.RollUpCounts: ("operate", maintenance.roll_up_counts),
}
"""Fault point and verb, in the order in which one commit does them."""

RENEWALS: dict[type, Verb] = {lock_ops.RenewLock: locks.renew, guard_ops.RenewKey: guard.renew}
"""One statement each, and so one transaction each: who is frozen in the middle of renewing what it
holds must not hold the row too, or nobody could take that over."""

DUTIES = (
    ops.RecoverOrphans,
    step_ops.RecheckWaits,
    carrier_ops.RerouteRuns,
    ops.Prune,
    ops.RollUpCounts,
)
OWN_TRANSACTION_OPS = (ops.Tick, step_ops.WakeRuns, bulk_ops.AdvanceBulk, *DUTIES)
"""In a transaction each: meanwhile others leave a duty alone. Ticks, wake-ups and rechecks lock
all of their waits at once and in order, before anything else, so that no two of them deadlock; a
page of an act on many runs locks its runs in order."""

TURNS: dict[type, int] = {
    **dict.fromkeys(OPERATIONS, 3),
    **dict.fromkeys(RENEWALS, 2),
    ops.RegisterWorker: 0,
    ops.SetProgress: 0,
    ops.AddLogs: 0,
    ops.RestoreLogs: 0,
    ops.Settle: 1,
    ops.Enqueue: 2,
    ops.EnqueueAgain: 2,
    step_ops.SendEvent: 2,
    ops.HandBackUnknown: 4,
    ops.ClaimRuns: 4,
    carrier_ops.ClaimCarried: 4,
}
"""Within one call: an attempt's words before its end, claims last, so that they see all."""

COMMITTERS = ("operate", "settle", "enqueue", "operate", "claim")
"""By turn; enqueues with a key, events and renewals go to "keyed"."""

WAKING = (
    ops.RetryRun,
    ops.PauseQueue,
    admin_ops.LimitQueue,
    schedule_ops.PutSchedule,
    schedule_ops.SetScheduleState,
    schedule_ops.RunSchedule,
    schedule_ops.BackfillSchedule,
)
WAKING_IF_FOUND = (
    ops.Recover,
    ops.RecoverOrphans,
    schedule_ops.FireSchedules,
    step_ops.WakeRuns,
    carrier_ops.RerouteRuns,
    bulk_ops.AdvanceBulk,
)

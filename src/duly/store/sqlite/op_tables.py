"""Which function writes which op, in which order, and which of them others should hear of."""

import sqlite3
from collections.abc import Callable
from typing import Any

from duly.core.verdict import Requeue
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
from duly.store.ops import Enqueue, EnqueueAgain, Op, Settle
from duly.store.sqlite import (
    bulk_actions,
    carried_runs,
    claim,
    enqueue,
    guard,
    locks,
    maintenance,
    operate,
    restore,
    schedules,
    settle,
    steps,
)

Verb = Callable[[sqlite3.Cursor, Any, Any], Any]

BATCHED: dict[type, tuple[str, Verb]] = {
    Enqueue: ("enqueue", enqueue.enqueue),
    EnqueueAgain: ("enqueue", enqueue.enqueue),
    ops.Settle: ("settle", settle.settle),
}
SINGLE: dict[type, tuple[str, Verb]] = {
    ops.RegisterWorker: ("operate", maintenance.register),
    ops.SetProgress: ("operate", operate.set_progress),
    ops.AddLogs: ("operate", operate.add_logs),
    ops.RestoreLogs: ("operate", operate.restore_logs),
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
    ops.HandBackUnknown: ("recover", maintenance.hand_back_unknown),
    schedule_ops.PutSchedule: ("operate", schedules.put),
    schedule_ops.SetScheduleState: ("operate", schedules.set_state),
    schedule_ops.RunSchedule: ("operate", schedules.run_now),
    schedule_ops.BackfillSchedule: ("operate", schedules.backfill),
    schedule_ops.FireSchedules: ("operate", schedules.fire),
    lock_ops.AcquireLock: ("operate", locks.acquire),
    lock_ops.RenewLock: ("operate", locks.renew),
    lock_ops.ReleaseLock: ("operate", locks.release),
    guard_ops.AcquireKey: ("operate", guard.acquire),
    guard_ops.RenewKey: ("operate", guard.renew),
    guard_ops.FinishKey: ("operate", guard.finish),
    guard_ops.FailKey: ("operate", guard.fail),
    guard_ops.ForgetKey: ("operate", guard.forget),
    guard_ops.PutDeadLetter: ("operate", guard.put_dead_letter),
    guard_ops.EndDeadLetter: ("operate", guard.end_dead_letter),
    step_ops.BeginStep: ("operate", steps.begin),
    step_ops.EndStep: ("operate", steps.end),
    step_ops.ForgetStep: ("operate", steps.forget),
    step_ops.SendEvent: ("operate", steps.send_event),
    step_ops.WakeRuns: ("operate", steps.wake),
    step_ops.RecheckWaits: ("operate", steps.recheck),
    step_ops.ResolveStep: ("operate", steps.resolve),
    carrier_ops.RerouteRuns: ("operate", carried_runs.reroute),
    carrier_ops.HandOver: ("operate", carried_runs.hand_over),
    carrier_ops.PostponeHandOver: ("operate", carried_runs.postpone_hand_over),
    admin_ops.InterruptRestored: ("operate", restore.interrupt_restored),
    admin_ops.LimitQueue: ("operate", operate.limit_queue),
    admin_ops.SetQueueCapacity: ("operate", operate.set_queue_capacity),
    ops.Tick: ("operate", maintenance.tick),
    ops.Prune: ("operate", maintenance.prune),
    ops.RollUpCounts: ("operate", maintenance.roll_up_counts),
    ops.ClaimRuns: ("claim", claim.claim),
    carrier_ops.ClaimCarried: ("claim", claim.claim_carried),
}
ORDER = [
    ops.RegisterWorker,
    ops.SetProgress,
    ops.AddLogs,
    ops.RestoreLogs,
    step_ops.BeginStep,
    step_ops.EndStep,
    step_ops.ForgetStep,
    ops.Settle,
    Enqueue,
    EnqueueAgain,
    step_ops.SendEvent,
    step_ops.WakeRuns,
    step_ops.RecheckWaits,
    step_ops.ResolveStep,
    ops.Cancel,
    ops.RetryRun,
    ops.DiscardDead,
    ops.PauseQueue,
    ops.ResetKey,
    admin_ops.RecordAuditEntry,
    bulk_ops.StartBulk,
    bulk_ops.AdvanceBulk,
    bulk_ops.TakeBulk,
    ops.Recover,
    ops.RecoverOrphans,
    ops.HandBackUnknown,
    schedule_ops.PutSchedule,
    schedule_ops.SetScheduleState,
    schedule_ops.RunSchedule,
    schedule_ops.BackfillSchedule,
    schedule_ops.FireSchedules,
    lock_ops.AcquireLock,
    lock_ops.RenewLock,
    lock_ops.ReleaseLock,
    guard_ops.RenewKey,
    guard_ops.FinishKey,
    guard_ops.FailKey,
    guard_ops.ForgetKey,
    guard_ops.AcquireKey,
    guard_ops.PutDeadLetter,
    guard_ops.EndDeadLetter,
    admin_ops.InterruptRestored,
    admin_ops.LimitQueue,
    admin_ops.SetQueueCapacity,
    ops.Tick,
    ops.Prune,
    ops.RollUpCounts,
    carrier_ops.RerouteRuns,
    carrier_ops.HandOver,
    carrier_ops.PostponeHandOver,
    ops.ClaimRuns,
    carrier_ops.ClaimCarried,
]
"""Within one commit: an attempt's words before its end, claims last, so that they see all."""

WAKING = (
    Enqueue,
    EnqueueAgain,
    ops.RetryRun,
    ops.PauseQueue,
    admin_ops.LimitQueue,
    schedule_ops.PutSchedule,
    schedule_ops.SetScheduleState,
    schedule_ops.RunSchedule,
    schedule_ops.BackfillSchedule,
    step_ops.SendEvent,
)
CLAIMING = (ops.ClaimRuns, carrier_ops.ClaimCarried)
BY_UPTIME = (lock_ops.AcquireLock, lock_ops.RenewLock, lock_ops.ReleaseLock)
"""What no change of the wall clock may hasten or put off."""
BY_BOTH_CLOCKS = (
    ops.Prune,
    guard_ops.AcquireKey,
    guard_ops.RenewKey,
    guard_ops.FinishKey,
    guard_ops.FailKey,
    guard_ops.ForgetKey,
    guard_ops.PutDeadLetter,
    guard_ops.EndDeadLetter,
)
"""What has a lease, which is by the one, and is kept for a while, which is by the other."""
WAKING_IF_FOUND = (
    ops.Recover,
    ops.RecoverOrphans,
    ops.HandBackUnknown,
    schedule_ops.FireSchedules,
    step_ops.WakeRuns,
    carrier_ops.RerouteRuns,
    bulk_ops.AdvanceBulk,
)


def fault_point(kind: type) -> str:
    """Return the first part of the names of an op's fault points."""
    return (BATCHED.get(kind) or SINGLE[kind])[0]


def requeues(written: list[Op]) -> bool:
    """Say whether some settle puts its run back into the queue."""
    settles = [op for op in written if type(op) is Settle]
    return Requeue in {type(op.verdict) for op in settles}


def grouped(ops: list[Op]) -> tuple[dict[type, list[int]], list[type]]:
    """Return where the ops of each kind are, and the order in which the kinds are written."""
    places: dict[type, list[int]] = {}
    for place, kind in enumerate(map(type, ops)):
        if kind in places:
            places[kind].append(place)
        else:
            places[kind] = [place]
    order = list(places)
    if len(order) > 1:
        order.sort(key=ORDER.index)
    return places, order

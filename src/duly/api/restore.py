"""Handles a restored backup: runs that may have run since are interrupted, not run again."""

from datetime import datetime

from duly.actor import resolve_actor
from duly.app_protocol import AppProtocol
from duly.core.amounts import instant
from duly.core.instants import iso
from duly.core.outcome import ErrorText
from duly.core.record import ClaimedRun
from duly.core.states import State
from duly.core.verdict import Finish, Verdict
from duly.errors import BadOption, StoreRefused
from duly.limits import TICK_BATCH
from duly.store.ops.operators import InterruptRestored, InterruptRestoredResult
from duly.store.ops.recovery import Recover, RecoverOrphans


def end_restored_runs(
    host: AppProtocol, since: datetime, *, actor: str | None = None
) -> InterruptRestoredResult:
    """End runs that were live in a backup as interrupted, and pause the backup's schedules.

    Each such run is a dead letter. Find out what it did, then retry or discard it.
    """
    store, who = host.store, resolve_actor(actor)
    made_at, now = instant("since", since), store.now()
    if made_at > now:
        raise BadOption("the time of a backup cannot be in the future")
    if any(worker.state == "live" for worker in store.list_workers()):
        message = (
            "stop all workers first: runs that they started after the backup cannot be identified "
            "while they work"
        )
        raise StoreRefused(message)
    reason = f"restored from a backup of {iso(made_at)}: the run may have run since"

    def interrupted(_run: ClaimedRun) -> tuple[str, Verdict, ErrorText | None]:
        return "lost", Finish(State.INTERRUPTED, "restored"), ErrorText("Restored", reason, "", "")

    gone = [worker.id for worker in store.list_workers() if not worker.has_ended]
    answers = store.apply([Recover(worker_id, interrupted) for worker_id in gone]) if gone else []
    runs = sum(len(found or []) for found in answers)
    # Also the runs of workers that were declared dead before, but were not recovered yet.
    while found := store.do(RecoverOrphans(interrupted, TICK_BATCH)):
        runs += len(found)
    schedules = 0
    while True:
        aside = store.do(InterruptRestored(made_at, who, reason, TICK_BATCH))
        runs += aside.runs
        schedules += aside.schedules
        if aside.runs < TICK_BATCH:
            return InterruptRestoredResult(runs, schedules, aside.newer)

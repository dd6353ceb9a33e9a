"""Steps of runs, and the events and other runs that they wait for."""

from duly.core.record import StepRecord
from duly.core.run_ids import is_run_id
from duly.limits import RECHECK_LONGEST_SECONDS
from duly.store.ops.steps import (
    BeginStep,
    EndStep,
    ForgetStep,
    Rechecked,
    RecheckWaits,
    ResolvedStep,
    ResolveStep,
    SendEvent,
    WakeRuns,
)
from duly.store.transaction import Row, Transaction
from duly.store.verbs.operators import insert_audit_entry, retry
from duly.store.verbs.verb import verb

_WAITS = ("sleep", "wait")
"""The kinds of steps that are over at a time, or when an event is sent."""
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


@verb(BeginStep)
def begin(transaction: Transaction, op: BeginStep) -> StepRecord | None:
    """Record that a run has reached a step, and end the step if its wait is over."""
    if not _holds(transaction, op):
        return None
    transaction.run("steps.begin", **op._asdict())
    if op.kind in _WAITS:
        transaction.run("steps.conclude", **op._asdict())
    found = transaction.row("steps.one", run_id=op.run_id, name=op.name)
    assert found is not None  # noqa: S101 - the claim holds, so the step is recorded by now
    return _record(found)


def _record(row: Row) -> StepRecord:
    # SQLite has no booleans.
    return StepRecord._make((*row[:3], bool(row[3]), *row[4:]))


@verb(EndStep)
def end(transaction: Transaction, op: EndStep) -> bool:
    """Record the result of a step. A repetition changes nothing."""
    if not _holds(transaction, op):
        return False
    transaction.run("steps.end", **op._asdict())
    return True


def has_ended(transaction: Transaction, op: EndStep) -> bool:
    """Return whether this op was carried out, after its reply was lost."""
    found = transaction.row("steps.one", run_id=op.run_id, name=op.name)
    if found is None:
        return False
    step = _record(found)
    return step.done and step.claim_number == op.claim_number


@verb(ForgetStep)
def forget(transaction: Transaction, op: ForgetStep) -> bool:
    """Forget that a step has begun."""
    if not _holds(transaction, op):
        return False
    transaction.run("steps.forget", **op._asdict())
    return True


def _holds(transaction: Transaction, op: BeginStep | EndStep | ForgetStep) -> bool:
    """Return whether the claim holds. On PostgreSQL, its row is locked until the commit."""
    claim = {"run_id": op.run_id, "claim_number": op.claim_number}
    return transaction.row("steps.holds", **claim) is not None


@verb(ResolveStep)
def resolve(transaction: Transaction, op: ResolveStep) -> ResolvedStep:
    """Record what became of a step that a run was interrupted in, and queue the run again."""
    # A step is resolved if its run can be queued again, or has other steps to resolve.
    with transaction.savepoint("duly_resolving") as undo:
        transaction.coordinate("steps.lock_ended", run_id=op.run_id)
        names = _resolve(transaction, op)
        for step in names:
            act = f"call step {step} done" if op.is_done else f"run step {step} again"
            insert_audit_entry(transaction, op.retry.actor, act, op.run_id, op.retry.reason)
        retried = retry(transaction, op.retry)
        if retried.done or retried.unresolved:
            return ResolvedStep(names, retried)
        undo()
    return ResolvedStep((), retried)


def _resolve(transaction: Transaction, op: ResolveStep) -> tuple[str, ...]:
    """Resolve a step and the steps inside it, and return their names."""
    place = {"run_id": op.run_id, "step": op.step}
    if op.is_done:
        rows = transaction.rows("steps.resolve_done", **place, result=op.result)
    else:
        rows = transaction.rows("steps.resolve_again", **place)
    return tuple(name for (name,) in rows)


def wake_by_events(transaction: Transaction, limit: int) -> None:
    """Wake the runs that wait for events whose transactions have committed.

    On SQLite, the statement that sends an event wakes them.
    """
    found = transaction.coordinate("steps.take_wakeups", limit=limit)
    names = found and found[0]
    if names:
        # A settle that suspends a run at the same time has committed by now, or sees the event.
        transaction.coordinate("steps.lock_wakes", names=names)
        transaction.coordinate("steps.rouse_waiting", names=names)


@verb(SendEvent)
def send_event(transaction: Transaction, op: SendEvent) -> bool:
    """Record an event. If it was sent before, its first payload stays.

    On SQLite, the statement also wakes the runs that wait for the event. On PostgreSQL, a tick
    wakes them.
    """
    return bool(transaction.run("steps.send", **op._asdict(), hint=False))


@verb(WakeRuns)
def wake(transaction: Transaction, op: WakeRuns) -> int:
    """Make those of these runs ready whose wait is over."""
    run_ids = sorted(filter(is_run_id, op.run_ids))
    # A settle that suspends one of these runs at the same time checks its wait under the same lock.
    transaction.coordinate("steps.lock_wakes", names=run_ids)
    return transaction.run("steps.wake", run_ids=run_ids)


@verb(RecheckWaits)
def recheck(transaction: Transaction, op: RecheckWaits) -> Rechecked:
    """Check some of all waits, unless nothing has happened that could have ended one."""
    counted = op.counted
    if op.turn is not None and not op.after:
        changes = {"longest": RECHECK_LONGEST_SECONDS}
        # SQLite does not count its changes, so there every pass checks all waits.
        counted, has_changed = transaction.coordinate("steps.counted", **changes) or ("", True)
        if not has_changed:
            return Rechecked(0, "")
    place = {"after": op.after or _FIRST_ID, "limit": op.limit}
    found = [str(run_id) for (run_id,) in transaction.rows("steps.pending", **place)]
    roused = transaction.run("steps.wake", run_ids=found) if found else 0
    if len(found) == op.limit:
        return Rechecked(roused, found[-1], counted)
    if counted:
        transaction.coordinate("steps.note_rechecked", counted=counted)
    return Rechecked(roused, "")

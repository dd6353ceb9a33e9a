"""The acts of operators on runs, queues and whole databases."""

from duly.core.ended_runs import DISCARDED, REDRIVEN
from duly.core.record import StepRecord
from duly.core.reschedule import QueuedRun, state_refusal
from duly.core.run_ids import is_run_id
from duly.core.states import State
from duly.core.unresolved_steps import steps_to_resolve
from duly.errors import StoreBusy
from duly.store.ops.operators import (
    Cancel,
    DiscardDead,
    InterruptRestored,
    InterruptRestoredResult,
    LimitQueue,
    PauseQueue,
    RecordAuditEntry,
    RescheduledRun,
    RescheduleRun,
    ResetKey,
    RetriedRun,
    RetryRun,
    SetQueueCapacity,
    describe_capacity_action,
    describe_reschedule_action,
    describe_retry_action,
)
from duly.store.transaction import Transaction
from duly.store.verbs.verb import verb

_TRIES = 20
"""How often an op looks for a run that changes or moves from table to table meanwhile."""
_KEY_WAIT_MILLISECONDS = 200
_RESTORED = "restored"
"""The cause of runs that may have run after their backup was made."""


# -- runs --


@verb(Cancel)
def cancel(transaction: Transaction, op: Cancel) -> str | None:
    """End a queued run, or ask a running run to stop."""
    if not is_run_id(op.run_id):
        return None
    for _ in range(_TRIES):
        if end_queued(transaction, op.run_id, cause="requested", error=op.reason or None):
            answer = "cancelled"
        elif transaction.run("operate.ask_cancel", run_id=op.run_id):
            answer = "requested"
        else:
            state = _state_of(transaction, op.run_id)
            if state in {State.QUEUED, State.RUNNING}:
                continue
            return state
        insert_audit_entry(transaction, op.actor, "cancel", op.run_id, op.reason)
        return answer
    raise StoreBusy(f"run {op.run_id} changes too often to be cancelled now; try again")


def end_queued(
    transaction: Transaction,
    run_id: str,
    *,
    cause: str,
    error: str | None,
    state: str = State.CANCELLED,
) -> bool:
    """Move a run that no worker runs to history. Return whether there was one."""
    ending = {"run_id": run_id, "state": state, "cause": cause, "error": error}
    return bool(transaction.run("operate.end_queued", **ending))


@verb(RescheduleRun)
def reschedule(transaction: Transaction, op: RescheduleRun) -> RescheduledRun:
    """Change when, how urgently and in which queue a queued run starts."""
    if not is_run_id(op.run_id):
        return RescheduledRun(done=False, state=None)
    for _ in range(_TRIES):
        found = transaction.row("operate.queued", run_id=op.run_id)
        if found is not None:
            answer = _reschedule_queued(transaction, op, QueuedRun._make(found))
            if answer is not None:
                return answer
            continue
        state = _state_of(transaction, op.run_id)
        if state != State.QUEUED:
            refusal = "" if state is None else state_refusal(state)
            return RescheduledRun(done=False, state=state, refusal=refusal)
    raise StoreBusy(f"run {op.run_id} changes too often to be rescheduled now; try again")


def _reschedule_queued(
    transaction: Transaction, op: RescheduleRun, run: QueuedRun
) -> RescheduledRun | None:
    """Reschedule a run that was read as queued. Return None if it has changed since."""
    due_at = run.due_at_after(op.delay, op.at)
    is_due = due_at <= run.now
    refusal = run.refusal(due_at)
    if refusal is not None:
        return RescheduledRun(done=False, state=State.QUEUED, refusal=refusal)
    if is_due and op.queue not in {None, run.queue}:
        bound = transaction.row("enqueue.max_size", queue=op.queue)
        if bound is not None and _size_of(transaction, op.queue, bound[0]) >= bound[0]:
            return RescheduledRun(done=False, state=State.QUEUED, max_size=bound[0])
    place = {"queue": op.queue, "priority": op.priority, "due_at": due_at, "is_due": is_due}
    read = {"lane": run.lane, "claim_number": run.claim_number, "due_before": run.due_at}
    if not transaction.run("operate.reschedule", run_id=op.run_id, **place, **read):
        return None
    act = describe_reschedule_action(op, due_at)
    insert_audit_entry(transaction, op.actor, act, op.run_id, op.reason)
    return RescheduledRun(done=True, state=State.QUEUED)


def _size_of(transaction: Transaction, queue: str | None, limit: int) -> int:
    """Return how many runs wait for workers in a queue, counted up to a limit."""
    size: int = transaction.value("enqueue.size", queue=queue, limit=limit)
    return size


@verb(RetryRun)
def retry(transaction: Transaction, op: RetryRun) -> RetriedRun:
    """Queue a final run again. It keeps its id, and its claim number continues to grow."""
    if not is_run_id(op.run_id):
        return RetriedRun(done=False, state=None)
    with transaction.savepoint("duly_revival") as undo:
        _hold_key_again(transaction, op)
        held = transaction.row("operate.live_holder", run_id=op.run_id, other_names=op.other_names)
        if held is not None:
            # Under another name of the task the key may have been free.
            undo()
            return RetriedRun(done=False, state=held[1], held_by=held[0])
        revived = _revive(transaction, op)
        if revived is None:
            return RetriedRun(done=False, state=_state_of(transaction, op.run_id))
        if op.fresh_effects:
            transaction.run("steps.next_epoch", run_id=op.run_id)
        if op.from_step is not None:
            transaction.run("steps.forget_from", run_id=op.run_id, from_step=op.from_step)
        begun = transaction.rows("steps.begun", run_id=op.run_id)
        unresolved = steps_to_resolve(revived, map(StepRecord._make, begun))
        if unresolved:
            undo()
            return RetriedRun(done=False, state=revived, unresolved=unresolved)
    insert_audit_entry(transaction, op.actor, describe_retry_action(op), op.run_id, op.reason)
    return RetriedRun(done=True, state=State.QUEUED)


def _hold_key_again(transaction: Transaction, op: RetryRun) -> None:
    """Give a run its key back, if no other run has it.

    The open transaction of a caller may be taking the key. Other ops share this connection, so this
    waits only as long as a short transaction takes.
    """
    revival = {
        "run_id": op.run_id,
        "states": op.states,
        "generation": op.generation,
        "other_names": op.other_names,
    }
    with transaction.lock_timeout(_KEY_WAIT_MILLISECONDS):
        if transaction.run("operate.hold_key_again", **revival) <= len(op.other_names):
            # The key's row is locked now. Its run may have ended after that statement began, and
            # the time of a statement is when it began. Only a later statement sees that the key has
            # expired.
            transaction.run("operate.hold_key_again", **revival)


def _revive(transaction: Transaction, op: RetryRun) -> str | None:
    """Queue a final run again, and return the state that it was in, or None."""
    found = transaction.row(
        "operate.revive",
        run_id=op.run_id,
        states=op.states,
        generation=op.generation,
        lane=op.lane,
        delay=op.delay,
        arguments=op.arguments,
        change=REDRIVEN,
    )
    return None if found is None else str(found[0])


@verb(DiscardDead)
def discard(transaction: Transaction, op: DiscardDead) -> RetriedRun:
    """End a dead letter as cancelled."""
    if not is_run_id(op.run_id):
        return RetriedRun(done=False, state=None)
    if not transaction.run("operate.discard", run_id=op.run_id, change=DISCARDED):
        return RetriedRun(done=False, state=_state_of(transaction, op.run_id))
    insert_audit_entry(transaction, op.actor, "discard", op.run_id, op.reason)
    return RetriedRun(done=True, state=State.CANCELLED)


@verb(ResetKey)
def reset_key(transaction: Transaction, op: ResetKey) -> bool:
    """Forget the key of a run."""
    place = {"task": op.task, "key": op.key, "run_id": op.run_id}
    transaction.run("operate.release_of_key", **place)
    is_reset = bool(transaction.run("operate.reset_key", **place))
    if is_reset:
        insert_audit_entry(transaction, op.actor, "reset key", f"{op.task} {op.key}", "")
    return is_reset


def _state_of(transaction: Transaction, run_id: str) -> str | None:
    found = transaction.row("operate.state", run_id=run_id)
    return None if found is None else str(found[0])


# -- queues --


@verb(PauseQueue)
def pause_queue(transaction: Transaction, op: PauseQueue) -> None:
    """Pause or resume a queue. Claims read the flag, and a tick moves the runs."""
    transaction.run("operate.pause", queue=op.queue, paused=op.paused)
    if not op.paused:
        transaction.run("carry.resume", queue=op.queue)
    act = "pause" if op.paused else "resume"
    insert_audit_entry(transaction, op.actor, act, f"queue {op.queue}", op.reason)


@verb(LimitQueue)
def limit_queue(transaction: Transaction, op: LimitQueue) -> None:
    """Set or lift the limit of a queue. It holds from the next claim on."""
    transaction.run("operate.limit", queue=op.queue, limit=op.limit)
    act = "lift limit" if op.limit is None else f"limit to {op.limit}"
    insert_audit_entry(transaction, op.actor, act, f"queue {op.queue}", op.reason)


@verb(SetQueueCapacity)
def set_queue_capacity(transaction: Transaction, op: SetQueueCapacity) -> None:
    """Set or lift the bound of a queue. Processes that enqueue read it from time to time."""
    transaction.run("operate.bound", queue=op.queue, max_size=op.max_size)
    act = describe_capacity_action(op)
    insert_audit_entry(transaction, op.actor, act, f"queue {op.queue}", op.reason)


# -- the audit, and the whole database --


@verb(RecordAuditEntry)
def record_audit_entry(transaction: Transaction, op: RecordAuditEntry) -> None:
    """Record an act that changes nothing in the store."""
    insert_audit_entry(transaction, op.actor, op.act, op.subject, op.reason)


def insert_audit_entry(
    transaction: Transaction, actor: str, act: str, subject: str, reason: str
) -> None:
    """Record an act of an operator."""
    entry = {"actor": actor, "act": act, "subject": subject, "reason": reason}
    transaction.run("operate.record", **entry)


@verb(InterruptRestored)
def interrupt_restored(transaction: Transaction, op: InterruptRestored) -> InterruptRestoredResult:
    """End some waiting runs of a restored backup, and pause schedules that came due."""
    in_doubt = transaction.rows("restore.in_doubt", since=op.since, limit=op.limit)
    for (run_id,) in in_doubt:
        ending = {"cause": _RESTORED, "error": op.reason, "state": State.INTERRUPTED}
        if end_queued(transaction, run_id, **ending):
            insert_audit_entry(transaction, op.actor, "set aside", run_id, op.reason)
    paused = transaction.run("restore.pause_schedules", since=op.since)
    transaction.run("restore.end_bulk_acts")
    newer = 0
    if len(in_doubt) < op.limit:
        # All runs are done. They are counted only now, since this reads all that wait.
        newer = transaction.value("restore.newer", since=op.since)
        transaction.adopt_database()
    return InterruptRestoredResult(len(in_doubt), paused, newer)

"""What people do to runs and queues, and what running attempts say about themselves."""

import json
import sqlite3
from typing import assert_never

from duly.core.ended_runs import DISCARDED, REDRIVEN
from duly.core.record import StepRecord
from duly.core.states import DEAD, State
from duly.core.unresolved_steps import steps_to_resolve
from duly.store.ops.operators import (
    Cancel,
    DiscardDead,
    LimitQueue,
    PauseQueue,
    RecordAuditEntry,
    ResetKey,
    RetriedRun,
    RetryRun,
    SetQueueCapacity,
    describe_capacity_action,
    describe_retry_action,
)
from duly.store.ops.updates import AddLogs, RestoreLogs, RunUpdate, SetProgress
from duly.store.sqlite.multirow import execute_rows
from duly.store.statements import load

SQL = load("duly.store.sqlite", "operate")
CARRY = load("duly.store.sqlite", "carry")
JOURNAL = load("duly.store.sqlite", "journal")
SETTLE = load("duly.store.sqlite", "settle")
STEPS = load("duly.store.sqlite", "steps")


def cancel(cursor: sqlite3.Cursor, op: Cancel, now: int) -> str | None:
    """End a queued run, ask a running one to stop, leave a final one alone."""
    found = cursor.execute(SQL["state"], {"run_id": op.run_id}).fetchone()
    if found is None:
        return None
    state: str = found[0]
    if state == State.QUEUED:
        end_queued(cursor, op.run_id, cause="requested", error=op.reason or None, now=now)
        answer = "cancelled"
    elif state == State.RUNNING:
        cursor.execute(SQL["ask_cancel"], {"run_id": op.run_id})
        answer = "requested"
    else:
        return state
    insert_audit_entry(cursor, op.actor, "cancel", op.run_id, op.reason, now)
    return answer


def end_queued(
    cursor: sqlite3.Cursor,
    run_id: str,
    *,
    cause: str,
    error: str | None,
    now: int,
    state: str = State.CANCELLED,
) -> None:
    """Move a run that nobody runs to history."""
    place = {"run_id": run_id, "state": state, "cause": cause, "error": error, "now": now}
    if cursor.execute(SQL["end_ready"], place).rowcount:
        cursor.execute(SQL["drop_ready"], {"run_id": run_id})
    elif cursor.execute(SQL["end_waiting"], place).rowcount:
        cursor.execute(SQL["drop_waiting"], {"run_id": run_id})
    cursor.execute(SQL["expire_key_of"], {"run_id": run_id, "now": now})


def retry_run(cursor: sqlite3.Cursor, op: RetryRun, now: int) -> RetriedRun:
    """Queue a final run again: same id, next generation, claim_number goes on growing."""
    found = cursor.execute(SQL["state"], {"run_id": op.run_id}).fetchone()
    if found is None:
        return RetriedRun(done=False, state=None)
    place = {"run_id": op.run_id}
    names = {"other_names": json.dumps(op.other_names)}
    held = cursor.execute(SQL["live_holder"], place | names).fetchone()
    if held is not None:
        return RetriedRun(done=False, state=held[1], held_by=held[0])
    cursor.execute(SQL["before_revival"])
    revived = cursor.execute(
        SQL["revive"],
        place
        | {
            "due_at": now + op.delay,
            "arguments": op.arguments,
            "states": json.dumps(op.states),
            "generation": op.generation,
            "lane": op.lane,
        },
    )
    if revived.rowcount == 0:
        cursor.execute(SQL["after_revival"])
        return RetriedRun(done=False, state=found[0])
    cursor.execute(SETTLE["tally_change"], place | {"change": REDRIVEN})
    cursor.execute(SQL["keep_last_attempt"], place)
    cursor.execute(SQL["drop_revived"], place)
    cursor.execute(SQL["hold_key_again"], place | {"now": now})
    if op.fresh_effects:
        cursor.execute(STEPS["next_epoch"], place | {"now": now})
    if op.from_step is not None:
        cursor.execute(STEPS["forget_from"], place | {"from_step": op.from_step})
    begun = map(StepRecord._make, cursor.execute(STEPS["begun"], place).fetchall())
    unresolved = steps_to_resolve(found[0], begun)
    if unresolved:
        cursor.execute(SQL["undo_revival"])
        cursor.execute(SQL["after_revival"])
        return RetriedRun(done=False, state=found[0], unresolved=unresolved)
    cursor.execute(SQL["after_revival"])
    insert_audit_entry(cursor, op.actor, describe_retry_action(op), op.run_id, op.reason, now)
    return RetriedRun(done=True, state=State.QUEUED)


def discard_dead(cursor: sqlite3.Cursor, op: DiscardDead, now: int) -> RetriedRun:
    """End a dead letter as cancelled."""
    found = cursor.execute(SQL["state"], {"run_id": op.run_id}).fetchone()
    if found is None:
        return RetriedRun(done=False, state=None)
    if found[0] not in DEAD:
        return RetriedRun(done=False, state=found[0])
    cursor.execute(SETTLE["tally_change"], {"run_id": op.run_id, "change": DISCARDED})
    cursor.execute(SQL["discard"], {"run_id": op.run_id})
    insert_audit_entry(cursor, op.actor, "discard", op.run_id, op.reason, now)
    return RetriedRun(done=True, state=State.CANCELLED)


def pause_queue(cursor: sqlite3.Cursor, op: PauseQueue, now: int) -> None:
    """Pause or resume a queue; claims look at the flag, a tick moves the rows."""
    cursor.execute(SQL["pause"], {"queue": op.queue, "paused": op.paused})
    if not op.paused:
        cursor.execute(CARRY["resume"], {"queue": op.queue, "now": now})
    act = "pause" if op.paused else "resume"
    insert_audit_entry(cursor, op.actor, act, f"queue {op.queue}", op.reason, now)


def record_audit_entry(cursor: sqlite3.Cursor, op: RecordAuditEntry, now: int) -> None:
    """Write down what somebody did elsewhere."""
    insert_audit_entry(cursor, op.actor, op.act, op.subject, op.reason, now)


def limit_queue(cursor: sqlite3.Cursor, op: LimitQueue, now: int) -> None:
    """Set or lift the limit of a queue; the next claim goes by it."""
    cursor.execute(SQL["limit"], {"queue": op.queue, "limit": op.limit})
    act = "lift limit" if op.limit is None else f"limit to {op.limit}"
    insert_audit_entry(cursor, op.actor, act, f"queue {op.queue}", op.reason, now)


def set_queue_capacity(cursor: sqlite3.Cursor, op: SetQueueCapacity, now: int) -> None:
    """Set or lift how many runs may wait in a queue; who enqueues looks at it now and then."""
    cursor.execute(SQL["bound"], {"queue": op.queue, "max_size": op.max_size})
    insert_audit_entry(
        cursor, op.actor, describe_capacity_action(op), f"queue {op.queue}", op.reason, now
    )


def reset_key(cursor: sqlite3.Cursor, op: ResetKey, now: int) -> bool:
    """Forget a key."""
    cursor.execute(SQL["release_of_key"], op._asdict())
    gone = cursor.execute(SQL["reset_key"], op._asdict()).rowcount
    if gone:
        insert_audit_entry(cursor, op.actor, "reset key", f"{op.task} {op.key}", "", now)
    return bool(gone)


def set_progress(cursor: sqlite3.Cursor, op: SetProgress, now: int) -> bool:  # noqa: ARG001
    """Write the progress of an attempt whose claim still holds."""
    return bool(cursor.execute(JOURNAL["progress"], op._asdict()).rowcount)


def add_logs(cursor: sqlite3.Cursor, op: AddLogs, now: int) -> bool:  # noqa: ARG001
    """Write the log lines of an attempt whose claim still holds."""
    place = {"run_id": op.run_id, "claim_number": op.claim_number}
    if cursor.execute(JOURNAL["holds"], place).fetchone() is None:
        return False
    rows = [(op.run_id, op.claim_number, *line) for line in op.lines]
    execute_rows(cursor, JOURNAL, "log", rows)
    return True


def restore_logs(cursor: sqlite3.Cursor, op: RestoreLogs, now: int) -> bool:
    """Write those of the lines that are missing, while the claim still holds."""
    place = {"run_id": op.run_id, "claim_number": op.claim_number}
    known = set(cursor.execute(JOURNAL["known"], place))
    missing = tuple(line for line in dict.fromkeys(op.lines) if line not in known)
    return add_logs(cursor, AddLogs(op.run_id, op.claim_number, missing), now)


def write_update(cursor: sqlite3.Cursor, word: RunUpdate, now: int) -> None:
    """Write what an attempt says about itself, as a part of its own transaction."""
    match word:
        case AddLogs():
            add_logs(cursor, word, now)
        case RestoreLogs():
            restore_logs(cursor, word, now)
        case SetProgress():
            set_progress(cursor, word, now)
        case _:
            assert_never(word)


def insert_audit_entry(
    cursor: sqlite3.Cursor, actor: str, act: str, subject: str, reason: str, now: int
) -> None:
    """Write down what an operator did."""
    row = {"actor": actor, "act": act, "subject": subject, "reason": reason, "now": now}
    cursor.execute(SQL["record"], row)

"""What people do to runs and queues, and what running attempts say about themselves.

Each verb runs inside a transaction that the store opens and commits.
"""

from collections.abc import Mapping
from typing import Any, assert_never

from duly.core.ended_runs import DISCARDED, REDRIVEN
from duly.core.record import StepRecord
from duly.core.run_ids import is_run_id
from duly.core.states import State
from duly.core.unresolved_steps import steps_to_resolve
from duly.errors import StoreBusy
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
from duly.store.postgres.arrays import numbers, texts
from duly.store.postgres.connection import PostgresSession
from duly.store.statements import load

SQL = load("duly.store.postgres", "operate")
CARRY = load("duly.store.postgres", "carry")
JOURNAL = load("duly.store.postgres", "journal")
STEPS = load("duly.store.postgres", "steps")

_LOOKS = 20
"""How often to look for a run that moves from table to table under our eyes."""
_KEY_WAIT = "200ms"


def cancel(session: PostgresSession, op: Cancel) -> str | None:
    """End a queued run, ask a running one to stop, leave a final one alone."""
    if not is_run_id(op.run_id):
        return None
    place = {"run_id": op.run_id}
    for _ in range(_LOOKS):
        if end_queued(session, op.run_id, cause="requested", error=op.reason or None):
            answer = "cancelled"
        elif session.execute(SQL["ask_cancel"], place).rowcount:
            answer = "requested"
        else:
            state = _state(session, op.run_id)
            if state in {State.QUEUED, State.RUNNING}:
                continue
            return state
        insert_audit_entry(session, op.actor, "cancel", op.run_id, op.reason)
        return answer
    raise StoreBusy(f"run {op.run_id} changes too often to be cancelled now; try again")


def end_queued(
    session: PostgresSession,
    run_id: str,
    *,
    cause: str,
    error: str | None,
    state: str = State.CANCELLED,
) -> bool:
    """Move a run that nobody runs to history; say whether there was one."""
    ending = {"run_id": run_id, "state": state, "cause": cause, "error": error}
    return bool(_count(session, SQL["end_queued"], ending))


def retry_run(session: PostgresSession, op: RetryRun) -> RetriedRun:
    """Queue a final run again: same id, next generation, claim_number goes on growing."""
    if not is_run_id(op.run_id):
        return RetriedRun(done=False, state=None)
    revival = {
        "run_id": op.run_id,
        "states": texts(op.states),
        "generation": op.generation,
        "lane": op.lane,
        "delay": op.delay,
        "change": REDRIVEN,
        "arguments": op.arguments,
        "other_names": texts(op.other_names),
    }
    session.execute(SQL["before_revival"])
    _hold_key_again(session, op, revival)
    held = session.execute(SQL["live_holder"], revival).fetchone()
    if held is not None:
        # Under another name of the task the key may have been free.
        session.execute(SQL["undo_revival"])
        return RetriedRun(done=False, state=held[1], held_by=held[0])
    revived = session.execute(SQL["revive"], revival).fetchall()
    if not revived:
        return RetriedRun(done=False, state=_state(session, op.run_id))
    ((ended_as,),) = revived
    if op.fresh_effects:
        session.execute(STEPS["next_epoch"], {"run_id": op.run_id})
    if op.from_step is not None:
        session.execute(STEPS["forget_from"], {"run_id": op.run_id, "from_step": op.from_step})
    begun = session.execute(STEPS["begun"], {"run_id": op.run_id}).fetchall()
    unresolved = steps_to_resolve(ended_as, map(StepRecord._make, begun))
    if unresolved:
        session.execute(SQL["undo_revival"])
        return RetriedRun(done=False, state=ended_as, unresolved=unresolved)
    insert_audit_entry(session, op.actor, describe_retry_action(op), op.run_id, op.reason)
    return RetriedRun(done=True, state=State.QUEUED)


def _hold_key_again(session: PostgresSession, op: RetryRun, revival: Mapping[str, Any]) -> None:
    """Give a run its key back, if no other has it.

    A caller's open transaction may be taking the key. Others share this connection, so that this
    waits only as long as a short transaction takes.
    """
    limit = {"limit": _KEY_WAIT}
    ((usual, _),) = session.execute(SQL["limit_wait"], limit).fetchall()
    if session.execute(SQL["hold_key_again"], revival).rowcount <= len(op.other_names):
        # The key's row is locked now. Its run may have ended after that statement had begun, whose
        # time is when it began; only a later statement sees that the key has expired.
        session.execute(SQL["hold_key_again"], revival)
    session.execute(SQL["limit_wait"], {"limit": usual})


def discard_dead(session: PostgresSession, op: DiscardDead) -> RetriedRun:
    """End a dead letter as cancelled."""
    if not is_run_id(op.run_id):
        return RetriedRun(done=False, state=None)
    ending = {"run_id": op.run_id, "change": DISCARDED}
    if not session.execute(SQL["discard"], ending).rowcount:
        return RetriedRun(done=False, state=_state(session, op.run_id))
    insert_audit_entry(session, op.actor, "discard", op.run_id, op.reason)
    return RetriedRun(done=True, state=State.CANCELLED)


def pause_queue(session: PostgresSession, op: PauseQueue) -> None:
    """Pause or resume a queue; claims look at the flag, a tick moves the rows."""
    session.execute(SQL["pause"], {"queue": op.queue, "paused": op.paused})
    if not op.paused:
        session.execute(CARRY["resume"], {"queue": op.queue})
    act = "pause" if op.paused else "resume"
    insert_audit_entry(session, op.actor, act, f"queue {op.queue}", op.reason)


def record_audit_entry(session: PostgresSession, op: RecordAuditEntry) -> None:
    """Write down what somebody did elsewhere."""
    insert_audit_entry(session, op.actor, op.act, op.subject, op.reason)


def limit_queue(session: PostgresSession, op: LimitQueue) -> None:
    """Set or lift the limit of a queue; the next claim goes by it."""
    session.execute(SQL["lock_limit"], {"name": f"queue {op.queue}"})
    session.execute(SQL["limit"], {"queue": op.queue, "limit": op.limit})
    act = "lift limit" if op.limit is None else f"limit to {op.limit}"
    insert_audit_entry(session, op.actor, act, f"queue {op.queue}", op.reason)


def set_queue_capacity(session: PostgresSession, op: SetQueueCapacity) -> None:
    """Set or lift how many runs may wait in a queue; who enqueues looks at it now and then."""
    session.execute(SQL["bound"], {"queue": op.queue, "max_size": op.max_size})
    insert_audit_entry(
        session, op.actor, describe_capacity_action(op), f"queue {op.queue}", op.reason
    )


def reset_key(session: PostgresSession, op: ResetKey) -> bool:
    """Forget a key."""
    session.execute(SQL["release_of_key"], op._asdict())
    gone = session.execute(SQL["reset_key"], op._asdict()).rowcount
    if gone:
        insert_audit_entry(session, op.actor, "reset key", f"{op.task} {op.key}", "")
    return bool(gone)


def set_progress(session: PostgresSession, op: SetProgress) -> bool:
    """Write the progress of an attempt whose claim still holds."""
    return bool(session.execute(JOURNAL["progress"], op._asdict()).rowcount)


def add_logs(session: PostgresSession, op: AddLogs) -> bool:
    """Write the log lines of an attempt whose claim still holds."""
    place = {"run_id": op.run_id, "claim_number": op.claim_number}
    if session.execute(JOURNAL["holds"], place).fetchone() is None:
        return False
    if op.lines:
        ats, levels, messages = zip(*op.lines, strict=True)
        lines = {"ats": numbers(ats), "levels": texts(levels), "messages": texts(messages)}
        session.execute(JOURNAL["log"], place | lines)
    return True


def restore_logs(session: PostgresSession, op: RestoreLogs) -> bool:
    """Write those of the lines that are missing, while the claim still holds."""
    place = {"run_id": op.run_id, "claim_number": op.claim_number}
    session.execute(JOURNAL["lock"], place)
    known = set(session.execute(JOURNAL["known"], place).fetchall())
    missing = tuple(line for line in dict.fromkeys(op.lines) if line not in known)
    return add_logs(session, AddLogs(op.run_id, op.claim_number, missing))


def write_update(session: PostgresSession, word: RunUpdate) -> None:
    """Write what an attempt says about itself, as a part of its own transaction."""
    match word:
        case AddLogs():
            add_logs(session, word)
        case RestoreLogs():
            restore_logs(session, word)
        case SetProgress():
            set_progress(session, word)
        case _:
            assert_never(word)


def _state(session: PostgresSession, run_id: str) -> str | None:
    row = session.execute(SQL["state"], {"run_id": run_id}).fetchone()
    return None if row is None else str(row[0])


def _count(session: PostgresSession, sql: str, parameters: Mapping[str, str | int | None]) -> int:
    row = session.execute(sql, parameters).fetchone()
    return 0 if row is None else int(row[0])


def insert_audit_entry(
    session: PostgresSession, actor: str, act: str, subject: str, reason: str
) -> None:
    """Write down what an operator did."""
    row = {"actor": actor, "act": act, "subject": subject, "reason": reason}
    session.execute(SQL["record"], row)

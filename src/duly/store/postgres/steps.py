"""Steps of runs, and events that they wait for."""

from collections.abc import Sequence
from typing import Any

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
from duly.store.postgres.arrays import texts
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.enqueue import SQL as ENQUEUE
from duly.store.postgres.enqueue import check_database
from duly.store.postgres.operate import insert_audit_entry, retry_run
from duly.store.protocol import Dialogue, ExternalStatement
from duly.store.statements import load

SQL = load("duly.store.postgres", "steps")

_FIRST_ID = "00000000-0000-0000-0000-000000000000"


def begin(session: PostgresSession, op: BeginStep) -> StepRecord | None:
    """Note that a run has come to a step, and end one that waits for nothing any more."""
    place = op._asdict()
    if not _holds(session, place):
        return None
    session.execute(SQL["begin"], place)
    session.execute(SQL["conclude"], place)
    (row,) = session.execute(SQL["one"], place).fetchall()
    return _step(row)


def end(session: PostgresSession, op: EndStep) -> bool:
    """Record what a step came to; said again, it changes nothing."""
    place = op._asdict()
    if not _holds(session, place):
        return False
    session.execute(SQL["end"], place)
    return True


def has_ended(session: PostgresSession, op: EndStep) -> bool:
    """Say whether this very end is on record."""
    rows = session.execute(SQL["one"], op._asdict()).fetchall()
    return any(step.done and step.claim_number == op.claim_number for step in map(_step, rows))


def forget(session: PostgresSession, op: ForgetStep) -> bool:
    """Take back that a step has begun."""
    place = op._asdict()
    if not _holds(session, place):
        return False
    session.execute(SQL["forget"], place)
    return True


def send_event(session: PostgresSession, op: SendEvent) -> bool:
    """Say that something has happened; the first word counts. A tick wakes the runs that wait."""
    return bool(session.execute(SQL["send"], op._asdict()).fetchall())


def send_on_connection(op: SendEvent, database: str, *, hint: bool) -> Dialogue[bool]:
    """Say it on a connection that is not ours, but to the same database."""
    found = yield ExternalStatement("postgresql", ENQUEUE["database"], {})
    check_database(found, database)
    news = yield ExternalStatement(
        "postgresql", SQL["send_and_hint" if hint else "send"], op._asdict()
    )
    return news is not None


def wake_by_events(session: PostgresSession, limit: int) -> None:
    """Wake the runs that wait for events whose transactions have committed."""
    found = session.execute(SQL["take_wakeups"], {"limit": limit}).fetchall()
    if found:
        names = {"names": texts([name for (name,) in found])}
        # A settle that suspends a run just now has committed behind this, or sees the event.
        session.execute(SQL["lock_wakes"], names)
        session.execute(SQL["rouse_waiting"], names)


def wake(session: PostgresSession, op: WakeRuns) -> int:
    """Let runs go on that wait for nothing any more."""
    run_ids = texts(sorted(filter(is_run_id, op.run_ids)))
    # Whoever suspends one of these runs just now looks under the same lock.
    session.execute(SQL["lock_wakes"], {"names": run_ids})
    return session.execute(SQL["wake"], {"run_ids": run_ids}).rowcount


def recheck(session: PostgresSession, op: RecheckWaits) -> Rechecked:
    """Look at some of all runs that wait, unless nothing can have happened to any."""
    counted = op.counted
    if op.turn is not None and not op.after:
        longest = {"longest": RECHECK_LONGEST_SECONDS}
        ((counted, has_changed),) = session.execute(SQL["counted"], longest).fetchall()
        if not has_changed:
            return Rechecked(0, "")
    place = {"after": op.after or _FIRST_ID, "limit": op.limit}
    found = [str(run_id) for (run_id,) in session.execute(SQL["pending"], place).fetchall()]
    roused = session.execute(SQL["wake"], {"run_ids": texts(found)}).rowcount if found else 0
    if len(found) == op.limit:
        return Rechecked(roused, found[-1], counted)
    if counted:
        session.execute(SQL["note_rechecked"], {"counted": counted})
    return Rechecked(roused, "")


def find_satisfied_waits(session: PostgresSession, waits: Sequence[tuple[str, str]]) -> set[str]:
    """Return those runs for which what they are about to wait for is there already.

    Two statements: the second sees what was committed while the first waited for its locks.
    """
    ids, names = zip(*waits, strict=True)
    place = {"ids": texts(ids), "names": texts(names)}
    session.execute(SQL["lock_waits"], place)
    return {run_id for (run_id,) in session.execute(SQL["is_wait_satisfied"], place).fetchall()}


def resolve(session: PostgresSession, op: ResolveStep) -> ResolvedStep:
    """Record what became of a step that a run was interrupted in, and queue the run again."""
    place = {"run_id": op.run_id, "step": op.step, "result": op.result}
    session.execute(SQL["before_resolving"])
    session.execute(SQL["lock_ended"], {"run_id": op.run_id})
    name = "resolve_done" if op.is_done else "resolve_again"
    names = [found for (found,) in session.execute(SQL[name], place).fetchall()]
    for step in names:
        act = f"call step {step} done" if op.is_done else f"run step {step} again"
        insert_audit_entry(session, op.retry.actor, act, op.run_id, op.retry.reason)
    retried = retry_run(session, op.retry)
    is_kept = retried.done or bool(retried.unresolved)
    if not is_kept:
        session.execute(SQL["undo_resolving"])
    return ResolvedStep(tuple(names) if is_kept else (), retried)


_step = StepRecord._make


def _holds(session: PostgresSession, place: dict[str, Any]) -> bool:
    return session.execute(SQL["holds"], place).fetchone() is not None

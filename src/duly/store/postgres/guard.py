"""Keys of the guard, and dead letters of other engines."""

from typing import Any

from duly.limits import FORGET_BATCH
from duly.store.ops.guard import (
    AcquireKey,
    EndDeadLetter,
    FailKey,
    FinishKey,
    ForgetKey,
    Guarded,
    PutDeadLetter,
    RenewKey,
    guarded_from_row,
)
from duly.store.postgres.connection import PostgresSession
from duly.store.statements import load

SQL = load("duly.store.postgres", "guard")


def acquire(session: PostgresSession, op: AcquireKey) -> Guarded:
    """Take a key, unless somebody holds it or its body is done."""
    place = op._asdict()
    rows: list[tuple[Any, ...]] = []
    while not rows:  # Between the two somebody may forget what was in the way.
        is_taken = session.execute(SQL["acquire"], place).rowcount
        rows = session.execute(SQL["draw_fence" if is_taken else "standing"], place).fetchall()
    return guarded_from_row(op, rows[0])


def renew(session: PostgresSession, op: RenewKey) -> bool:
    """Give a holder its whole lease again."""
    return bool(session.execute_alone(SQL["renew"], op._asdict()))


def finish(session: PostgresSession, op: FinishKey) -> bool:
    """Record that a body is done, and forget a few keys whose time is over."""
    return _end(session, "finish", "done", op)


def fail(session: PostgresSession, op: FailKey) -> bool:
    """Let go of a key whose body failed."""
    return _end(session, "fail", "failed", op)


def forget(session: PostgresSession, op: ForgetKey) -> bool | None:
    """Forget a key that nobody holds."""
    if session.execute(SQL["forget"], op._asdict()).rowcount:
        return True
    return None if session.execute(SQL["standing"], op._asdict()).fetchall() else False


def put_dead_letter(session: PostgresSession, op: PutDeadLetter) -> bool:
    """Keep a dead letter, and forget a few whose time is over."""
    session.execute(SQL["drop_letters"], {"limit": FORGET_BATCH})
    return bool(session.execute(SQL["put_dead_letter"], op._asdict()).rowcount)


def end_dead_letter(session: PostgresSession, op: EndDeadLetter) -> bool:
    """Say what became of a dead letter."""
    return bool(session.execute(SQL["end_dead_letter"], op._asdict()).rowcount)


def _end(session: PostgresSession, how: str, state: str, op: FinishKey | FailKey) -> bool:
    is_ours = session.execute(SQL[how], op._asdict()).rowcount
    if not is_ours:
        # Said a second time: the first answer may have been lost.
        place = {"key": op.key, "owner": op.owner, "fence": op.fence, "state": state}
        ((has_ended,),) = session.execute(SQL["has_ended"], place).fetchall()
        if not has_ended:
            return False
    session.execute(SQL["drop_forgotten"], {"limit": FORGET_BATCH})
    return True

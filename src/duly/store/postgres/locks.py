"""Named locks."""

from duly.store.ops.locks import AcquireLock, Locked, ReleaseLock, RenewLock
from duly.store.postgres.connection import PostgresSession
from duly.store.statements import load

SQL = load("duly.store.postgres", "locks")


def acquire(session: PostgresSession, op: AcquireLock) -> Locked:
    """Take a lock if it is free, or its time is over."""
    rows = session.execute(SQL["lock"], {"name": op.name}).fetchall()
    # A lock in other hands is only read: a try to take it would lock its row until the end of this
    # transaction, and its holder could not renew it meanwhile.
    if not rows or rows[0][0] is None or rows[0][3] == 0:
        session.execute(SQL["acquire"], op._asdict())
        rows = session.execute(SQL["lock"], {"name": op.name}).fetchall()
    ((owner, holder, fence, left, gone),) = rows
    if owner == op.owner and fence <= gone:
        fence = gone + 1
        session.execute(SQL["raise_fence"], {"name": op.name, "owner": owner, "fence": fence})
    return Locked(owner == op.owner, fence, holder, left)


def renew(session: PostgresSession, op: RenewLock) -> bool:
    """Give a lock its whole time again, if it is still ours."""
    return bool(session.execute_alone(SQL["renew"], op._asdict()))


def release(session: PostgresSession, op: ReleaseLock) -> bool:
    """Let go of a lock, if it is still ours."""
    return bool(session.execute(SQL["release"], op._asdict()).rowcount)

"""Named locks."""

from duly.store.lock_ops import AcquireLock, Locked, ReleaseLock, RenewLock
from duly.store.postgres.connection import Session
from duly.store.statements import load

SQL = load("duly.store.postgres", "locks")


def acquire(session: Session, op: AcquireLock) -> Locked:
    """Take a lock if it is free, or its time is over."""
    session.execute(SQL["acquire"], op._asdict())
    ((owner, holder, fence, left),) = session.execute(SQL["lock"], {"name": op.name}).fetchall()
    return Locked(owner == op.owner, fence, holder, left)


def renew(session: Session, op: RenewLock) -> bool:
    """Give a lock its whole time again, if it is still ours."""
    return bool(session.execute_alone(SQL["renew"], op._asdict()))


def release(session: Session, op: ReleaseLock) -> bool:
    """Let go of a lock, if it is still ours."""
    return bool(session.execute(SQL["release"], op._asdict()).rowcount)

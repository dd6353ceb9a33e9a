"""Named locks."""

import sqlite3
from typing import Any

from duly.clock import boot_id
from duly.store.ops.locks import AcquireLock, Locked, ReleaseLock, RenewLock
from duly.store.statements import load

SQL = load("duly.store.sqlite", "locks")


def acquire(cursor: sqlite3.Cursor, op: AcquireLock, uptime: int) -> Locked:
    """Take a lock if it is free, or its time is over."""
    place = _place(op, uptime)
    cursor.execute(SQL["acquire"], place)
    owner, holder, fence, left = cursor.execute(SQL["lock"], place).fetchone()
    return Locked(owner == op.owner, fence, holder, left)


def renew(cursor: sqlite3.Cursor, op: RenewLock, uptime: int) -> bool:
    """Give a lock its whole time again, if it is still ours."""
    return bool(cursor.execute(SQL["renew"], _place(op, uptime)).rowcount)


def release(cursor: sqlite3.Cursor, op: ReleaseLock, uptime: int) -> bool:
    """Let go of a lock, if it is still ours."""
    return bool(cursor.execute(SQL["release"], _place(op, uptime)).rowcount)


def _place(op: AcquireLock | RenewLock | ReleaseLock, uptime: int) -> dict[str, Any]:
    return op._asdict() | {"uptime": uptime, "boot": boot_id().hex()}

"""The verbs of locks as values, and their answers."""

from typing import NamedTuple


class AcquireLock(NamedTuple):
    """Take a lock for `ttl` microseconds, unless somebody holds it. Answer: Locked.

    `owner` is drawn anew for every try to hold it: said twice, it takes the lock once.
    """

    name: str
    owner: str
    holder: str
    """Who that is, for people."""
    ttl: int


class Locked(NamedTuple):
    """Whether the lock is ours now, and who has it for how many more microseconds."""

    is_ours: bool
    fence: int
    holder: str
    left: int


class RenewLock(NamedTuple):
    """Give a lock its whole time again. Answer: whether it is still ours."""

    name: str
    owner: str
    fence: int
    ttl: int


class ReleaseLock(NamedTuple):
    """Let go of a lock. Answer: whether it was still ours."""

    name: str
    owner: str
    fence: int


LockOp = AcquireLock | RenewLock | ReleaseLock

"""Named locks."""

from typing import NamedTuple

from duly.store.ops.op import Facts, Phase, op


class Locked(NamedTuple):
    """The owner of a lock after an AcquireLock, and its time in microseconds."""

    is_ours: bool
    fence: int
    holder: str
    left: int


@op(Facts(Phase.OPERATE, "operate"))
class AcquireLock(NamedTuple):
    """Acquire a lock for `ttl` microseconds, unless another owner holds it.

    `owner` is random and new for every attempt to hold the lock, so a repeated op acquires it once.
    """

    name: str
    owner: str
    holder: str
    """The owner's name for people."""
    ttl: int

    def answer(self) -> Locked:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.ENQUEUE, "operate"))
class RenewLock(NamedTuple):
    """Hold a lock for its whole time again. The answer is whether it is still ours."""

    name: str
    owner: str
    fence: int
    ttl: int

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate"))
class ReleaseLock(NamedTuple):
    """Release a lock. The answer is whether it was still ours."""

    name: str
    owner: str
    fence: int

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError

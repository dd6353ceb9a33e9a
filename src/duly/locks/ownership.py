"""The ownership of a lock, by owner and fence, and the writes that only the owner may do."""

from dataclasses import dataclass

from duly.clock import MICROSECONDS
from duly.store.ops.locks import AcquireLock, Locked, ReleaseLock, RenewLock
from duly.store.protocol import Store


@dataclass(frozen=True, slots=True)
class Ownership:
    """A lock that was taken. It is renewed only by calls of `renew`."""

    store: Store
    """The store that contains the lock. Using the application could open a closed one again."""
    name: str
    owner: str
    fence: int
    ttl: float

    def renew(self) -> bool:
        """Extend the lock to its full time again. Return whether it is still ours."""
        op = RenewLock(self.name, self.owner, self.fence, _micros(self.ttl))
        is_ours = self.store.do(op)
        return bool(is_ours)

    def release(self) -> bool:
        """Release the lock. Return whether it was still ours."""
        was_ours = self.store.do(ReleaseLock(self.name, self.owner, self.fence))
        return bool(was_ours)


def acquire_ownership(
    store: Store, name: str, owner: str, *, holder: str, ttl: float
) -> Ownership | Locked:
    """Take a lock if it is free. Otherwise return who holds it."""
    found: Locked
    found = store.do(AcquireLock(name, owner, holder, _micros(ttl)))
    return Ownership(store, name, owner, found.fence, ttl) if found.is_ours else found


def _micros(seconds: float) -> int:
    return round(seconds * MICROSECONDS)

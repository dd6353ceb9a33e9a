"""Named locks."""

from duly.store.ops.locks import AcquireLock, Locked, ReleaseLock, RenewLock
from duly.store.transaction import Transaction
from duly.store.verbs.verb import verb


@verb(AcquireLock)
def acquire(transaction: Transaction, op: AcquireLock) -> Locked:
    """Acquire a lock if it is free, or if its time is over."""
    found = None
    while found is None:
        # Between the two statements, a prune may delete the lock that was in the way.
        transaction.run("locks.acquire", **op._asdict())
        found = transaction.row("locks.lock", name=op.name)
    owner, holder, fence, left, pruned_fence = found
    if owner == op.owner and fence <= pruned_fence:
        # While this transaction waited for the lock's row, a prune deleted it and its fence.
        fence = pruned_fence + 1
        transaction.run("locks.raise_fence", name=op.name, owner=owner, fence=fence)
    return Locked(owner == op.owner, fence, holder, left)


@verb(RenewLock)
def renew(transaction: Transaction, op: RenewLock) -> bool:
    """Hold a lock for its whole time again, if it is still ours."""
    return bool(transaction.run("locks.renew", **op._asdict()))


@verb(ReleaseLock)
def release(transaction: Transaction, op: ReleaseLock) -> bool:
    """Release a lock, if it is still ours."""
    return bool(transaction.run("locks.release", **op._asdict()))

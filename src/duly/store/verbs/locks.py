"""Named locks."""

from duly.store.ops.locks import AcquireLock, Locked, ReleaseLock, RenewLock
from duly.store.transaction import Transaction
from duly.store.verbs.verb import verb


@verb(AcquireLock)
def acquire(transaction: Transaction, op: AcquireLock) -> Locked:
    """Acquire a lock if it is free, or if its time is over."""
    found = transaction.row("locks.lock", name=op.name)
    # A lock that another owner holds is only read. An attempt to acquire it would lock its row
    # until the end of this transaction, and the owner could not renew it meanwhile.
    if found is None or found[0] is None or found[3] == 0:
        transaction.run("locks.acquire", **op._asdict())
        found = transaction.row("locks.lock", name=op.name)
    assert found is not None  # noqa: S101 - the statement before wrote it, or met it
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

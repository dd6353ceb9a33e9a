"""Named locks."""

from duly.store.ops.locks import AcquireLock, Locked, ReleaseLock, RenewLock
from duly.store.transaction import Row, Transaction
from duly.store.verbs.verb import verb


@verb(AcquireLock)
def acquire(transaction: Transaction, op: AcquireLock) -> Locked:
    """Acquire a lock if it is free, or if its time is over."""
    found: Row | None = None
    while found is None or not _is_final(found, op):
        found = transaction.row("locks.acquire", **op._asdict())
        found = found or transaction.row("locks.standing", name=op.name)
    owner, holder, fence, left = found
    if owner == op.owner:
        # While this transaction waited for the lock's row, a prune may have deleted it.
        raised = transaction.row("locks.raise_fence", name=op.name, owner=owner)
        fence = fence if raised is None else raised[0]
    return Locked(owner == op.owner, fence, holder, left)


def _is_final(found: Row, op: AcquireLock) -> bool:
    """Return whether the lock has an owner. Otherwise, it has changed since the statement began."""
    owner, _, _, left = found
    return owner == op.owner or (owner is not None and left > 0)


@verb(RenewLock)
def renew(transaction: Transaction, op: RenewLock) -> bool:
    """Hold a lock for its whole time again, if it is still ours."""
    return bool(transaction.run("locks.renew", **op._asdict()))


@verb(ReleaseLock)
def release(transaction: Transaction, op: ReleaseLock) -> bool:
    """Release a lock, if it is still ours."""
    return bool(transaction.run("locks.release", **op._asdict()))

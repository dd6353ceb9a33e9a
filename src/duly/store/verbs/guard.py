"""Keys of the guard, and dead letters of other engines."""

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
from duly.store.transaction import Transaction
from duly.store.verbs.verb import verb


@verb(AcquireKey)
def acquire(transaction: Transaction, op: AcquireKey) -> Guarded:
    """Acquire a key, unless another owner holds it or its body is done."""
    found = None
    while found is None:
        # Between the two statements, another process may forget the key that was in the way.
        is_taken = transaction.run("guard.acquire", **op._asdict())
        name = "guard.draw_fence" if is_taken else "guard.standing"
        found = transaction.row(name, **op._asdict())
    return guarded_from_row(op, found)


@verb(RenewKey)
def renew(transaction: Transaction, op: RenewKey) -> bool:
    """Hold a key for its whole lease again, if it is still ours."""
    return bool(transaction.run("guard.renew", **op._asdict()))


@verb(FinishKey)
def finish(transaction: Transaction, op: FinishKey) -> bool:
    """Record that a body is done, and forget some keys that are no longer kept."""
    return _end(transaction, "done", op, transaction.run("guard.finish", **op._asdict()))


@verb(FailKey)
def fail(transaction: Transaction, op: FailKey) -> bool:
    """Release a key whose body failed, and forget some keys that are no longer kept."""
    return _end(transaction, "failed", op, transaction.run("guard.fail", **op._asdict()))


def _end(transaction: Transaction, state: str, op: FinishKey | FailKey, ended: int) -> bool:
    if not ended:
        # The op may have been written before, and the reply lost.
        claim = {"key": op.key, "owner": op.owner, "fence": op.fence}
        if not transaction.value("guard.has_ended", **claim, state=state):
            return False
    transaction.run("guard.drop_forgotten", limit=FORGET_BATCH)
    return True


@verb(ForgetKey)
def forget(transaction: Transaction, op: ForgetKey) -> bool | None:
    """Forget a key that is not held."""
    if transaction.run("guard.forget", key=op.key):
        return True
    return None if transaction.row("guard.standing", key=op.key) else False


@verb(PutDeadLetter)
def put_dead_letter(transaction: Transaction, op: PutDeadLetter) -> bool:
    """Keep a dead letter, and delete some that are no longer kept."""
    transaction.run("guard.drop_letters", limit=FORGET_BATCH)
    return bool(transaction.run("guard.put_dead_letter", **op._asdict()))


@verb(EndDeadLetter)
def end_dead_letter(transaction: Transaction, op: EndDeadLetter) -> bool:
    """Record that an open dead letter was sent again or discarded."""
    return bool(transaction.run("guard.end_dead_letter", **op._asdict()))

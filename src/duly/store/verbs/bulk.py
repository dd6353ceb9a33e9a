"""Operator actions on many runs, one page of runs for each transaction."""

import json

from duly.clock import MICROSECONDS
from duly.limits import BULK_RETENTION_SECONDS
from duly.store.ops.bulk import AdvanceBulk, StartBulk, TakeBulk, count_page
from duly.store.transaction import Transaction
from duly.store.verbs.operators import insert_audit_entry
from duly.store.verbs.verb import carry_out, verb


@verb(StartBulk)
def start(transaction: Transaction, op: StartBulk) -> str:
    """Begin an action, and forget actions that ended long ago."""
    retention = round(BULK_RETENTION_SECONDS * MICROSECONDS)
    transaction.run("bulk.drop_old", retention=retention)
    known = None
    while known is None:
        if transaction.run("bulk.start", **op._asdict()):
            insert_audit_entry(transaction, op.actor, op.act, f"bulk {op.id}", op.reason)
            return op.id
        # Between the two statements, the action that was in the way may have ended.
        known = transaction.row("bulk.known", id=op.id, digest=op.digest)
    return str(known[0])


@verb(AdvanceBulk)
def advance(transaction: Transaction, op: AdvanceBulk) -> bool:
    """Carry out one page of an action, and count it."""
    found = transaction.row(
        "bulk.advance",
        id=op.id,
        owner=op.owner,
        after=op.after,
        reached=op.reached,
        is_over=op.is_over,
        error=op.error,
    )
    if found is None:
        return False
    # All transactions lock runs in the order of their ids, as ticks do.
    acts = tuple(sorted(op.acts, key=lambda act: act.run_id))
    answers = [carry_out(transaction, act) for act in acts]
    page = count_page(op._replace(acts=acts), answers, json.loads(found[0]))
    counts = {"done": page.done, "skipped": page.skipped, "refused": json.dumps(page.refused)}
    transaction.run("bulk.count", id=op.id, **counts)
    return True


@verb(TakeBulk)
def take(transaction: Transaction, op: TakeBulk) -> list[str]:
    """Become the owner of the actions whose process is silent."""
    return [bulk_id for (bulk_id,) in transaction.rows("bulk.take", **op._asdict())]

"""Deletes old rows at once, instead of leaving them to the workers."""

from duly.store.admin_ops import RecordAuditEntry
from duly.store.ops import Prune, Pruned
from duly.store.protocol import Store


def prune(store: Store, op: Prune, *, act: RecordAuditEntry) -> int:
    """Delete everything that a Prune selects, in batches. Return the number of deleted runs."""
    store.apply([act])
    runs = 0
    while True:
        (answer,) = store.apply([op])
        pruned: Pruned = answer
        runs += pruned.runs
        if pruned.most < op.limit:
            return runs
        op = op._replace(after=pruned.after)

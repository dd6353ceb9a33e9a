"""Deletes old rows at once, instead of leaving them to the workers."""

from duly.store.ops.operators import RecordAuditEntry
from duly.store.ops.upkeep import Prune
from duly.store.protocol import Store


def prune(store: Store, op: Prune, *, act: RecordAuditEntry) -> int:
    """Delete everything that a Prune selects, in batches. Return the number of deleted runs."""
    store.do(act)
    runs = 0
    while True:
        pruned = store.do(op)
        assert pruned is not None  # noqa: S101 - no other worker has the turn: the op names none
        runs += pruned.runs
        if pruned.most < op.limit:
            return runs
        op = op._replace(position=pruned.position)

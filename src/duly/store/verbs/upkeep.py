"""What keeps a store in order."""

from duly.store.count_rollup import COUNT_ROLLUPS
from duly.store.ops.upkeep import RollUpCounts
from duly.store.transaction import Call, Transaction
from duly.store.verbs.verb import verb


@verb(RollUpCounts)
def roll_up_counts(transaction: Transaction, op: RollUpCounts) -> int:
    """Add up counts that have grown old, a bounded number of each span."""
    calls = [Call("prune.fold", each._asdict() | {"limit": op.limit}) for each in COUNT_ROLLUPS]
    return max(result.number for result in transaction.execute_all(calls))

"""Steps of runs."""

from duly.store.ops.steps import ResolvedStep, ResolveStep
from duly.store.transaction import Transaction
from duly.store.verbs.operators import insert_audit_entry, retry
from duly.store.verbs.verb import verb


@verb(ResolveStep)
def resolve(transaction: Transaction, op: ResolveStep) -> ResolvedStep:
    """Record what became of a step that a run was interrupted in, and queue the run again."""
    # A step is resolved if its run can be queued again, or has other steps to resolve.
    with transaction.savepoint("duly_resolving") as undo:
        transaction.run("steps.lock_ended", run_id=op.run_id)
        names = _resolve(transaction, op)
        for step in names:
            act = f"call step {step} done" if op.is_done else f"run step {step} again"
            insert_audit_entry(transaction, op.retry.actor, act, op.run_id, op.retry.reason)
        retried = retry(transaction, op.retry)
        if retried.done or retried.unresolved:
            return ResolvedStep(names, retried)
        undo()
    return ResolvedStep((), retried)


def _resolve(transaction: Transaction, op: ResolveStep) -> tuple[str, ...]:
    """Resolve a step and the steps inside it, and return their names."""
    place = {"run_id": op.run_id, "step": op.step}
    if op.is_done:
        rows = transaction.rows("steps.resolve_done", **place, result=op.result)
    else:
        rows = transaction.rows("steps.resolve_again", **place)
    return tuple(name for (name,) in rows)

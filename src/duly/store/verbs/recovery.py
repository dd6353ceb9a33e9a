"""Settling the runs of workers that are gone."""

from collections.abc import Sequence

from duly.core.record import ClaimedRun
from duly.core.states import State
from duly.core.verdict import Finish, Requeue
from duly.store.ops.recovery import HandBackUnknown, Judge, Recover, RecoverOrphans
from duly.store.ops.runs import Settle
from duly.store.transaction import Row, Transaction
from duly.store.verbs.verb import verb


@verb(Recover)
def recover(transaction: Transaction, op: Recover) -> list[str] | None:
    """End a worker that has not beaten since, then settle the runs that it holds."""
    state = "stopped" if op.stopped else "dead"
    found = transaction.row(
        "recover.end_worker", worker_id=op.worker_id, state=state, beats=op.beats
    )
    if found is not None and found[0]:
        return None
    held = transaction.rows("recover.held", worker_id=op.worker_id)
    return _settle_held(transaction, held, op.judge)


@verb(RecoverOrphans)
def recover_orphans(transaction: Transaction, op: RecoverOrphans) -> list[str]:
    """Settle running runs whose worker is not live, whatever happened before."""
    ids = [run_id for (run_id,) in transaction.rows("recover.orphans", limit=op.limit)]
    if not ids:
        return []
    return _settle_held(transaction, transaction.rows("recover.still_orphaned", ids=ids), op.judge)


@verb(HandBackUnknown)
def hand_back_unknown(transaction: Transaction, op: HandBackUnknown) -> list[str]:
    """Hand back the runs that the store says a worker holds and that the worker does not know."""
    held = transaction.rows("recover.held", worker_id=op.worker_id)
    return _settle_held(transaction, [row for row in held if row[0] not in op.held], _hand_back)


def _hand_back(run: ClaimedRun) -> tuple[str, Finish | Requeue, None]:
    """Judge a claim whose body never started."""
    if run.cancel_requested:
        return "handed_back", Finish(State.CANCELLED, "requested"), None
    again = Requeue(0.0, run.attempt, run.retries_used, run.crashes, run.lane, recorded=False)
    return "handed_back", again, None


def _settle_held(transaction: Transaction, rows: Sequence[Row], judge: Judge) -> list[str]:
    settles = []
    for run in map(ClaimedRun._make, rows):
        outcome, verdict, error = judge(run)
        settles.append(
            Settle(
                run.run_id, run.claim_number, outcome, verdict, run.elapsed, error, keyed=run.keyed
            )
        )
    if settles:
        transaction.settle(settles)
    return [settle.run_id for settle in settles]

"""Records the ends of attempts: the only module that ends an attempt."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from duly.core.outcome import ErrorText
from duly.core.verdict import Finish, Requeue
from duly.store.ops.runs import Settle, Settled
from duly.store.sqlite.multirow import execute_rows
from duly.store.statements import load

SQL = load("sqlite", "settle")

BY_OTHERS = frozenset({"lost", "handed_back", "stopped"})
"""Outcomes that only recovery writes. If our claim has one of these, the claim was lost."""


def settle(cursor: sqlite3.Cursor, ops: Sequence[Settle], now: int) -> list[Settled]:
    """Record each verdict whose claim is still valid; return one answer per op."""
    if _finish(cursor, ops, now) == len(ops):
        return [Settled.DONE] * len(ops)
    return [
        _answer_finish(cursor, op) if isinstance(op.verdict, Finish) else _requeue(cursor, op, now)
        for op in ops
    ]


def _finish(cursor: sqlite3.Cursor, ops: Sequence[Any], now: int) -> int:
    """Record the finished runs among the ops; return how many of them had a valid claim."""
    succeeded = [
        (run_id, claim_number, elapsed, verdict.result or "")
        for run_id, claim_number, outcome, verdict, elapsed, _, _ in ops
        if outcome == "returned"
    ]
    moved = execute_rows(cursor, SQL, "succeed", succeeded, first=(now,), padded=True)
    if len(succeeded) < len(ops):
        others = [_ending(op) for op in ops if _ends_otherwise(op)]
        moved += execute_rows(cursor, SQL, "finish", others, first=(now,), padded=True)
    if moved:
        place = {"now": now}
        cursor.execute(SQL["tally"], place)
        cursor.execute(SQL["leave"], place)
    for op in [op for op in ops if op.keyed and type(op.verdict) is Finish]:
        claim = {"run_id": op.run_id, "claim_number": op.claim_number}
        cursor.execute(SQL["start_key_expiry"], claim)
    return moved


def _ends_otherwise(op: Settle) -> bool:
    return op.outcome != "returned" and isinstance(op.verdict, Finish)


def _ending(op: Settle) -> tuple[object, ...]:
    verdict = op.verdict
    assert isinstance(verdict, Finish)  # noqa: S101 - the caller sorted them
    error, traceback, fingerprint = error_columns(op.error)
    return (
        op.run_id,
        op.claim_number,
        verdict.state.value,
        verdict.cause,
        op.outcome,
        op.elapsed,
        verdict.result,
        error,
        traceback,
        fingerprint,
    )


def _answer_finish(cursor: sqlite3.Cursor, op: Settle) -> Settled:
    """Return DONE if the end is recorded, now or before a lost reply; otherwise CLAIM_LOST."""
    place = {"run_id": op.run_id, "claim_number": op.claim_number}
    found = cursor.execute(SQL["recorded"], place).fetchone()
    if found is None:
        return Settled.CLAIM_LOST
    ours = found[0] == op.outcome or found[0] not in BY_OTHERS
    return Settled.DONE if ours else Settled.CLAIM_LOST


def _requeue(cursor: sqlite3.Cursor, op: Settle, now: int) -> Settled:
    verdict = op.verdict
    assert isinstance(verdict, Requeue)  # noqa: S101 - the caller sorted them
    place = {"run_id": op.run_id, "claim_number": op.claim_number}
    standing = cursor.execute(SQL["standing"], place).fetchone()
    if standing is None:
        return _answer_finish(cursor, op)
    if standing[0]:
        return Settled.CANCEL_REQUESTED
    if verdict.recorded:
        error, traceback, _ = error_columns(op.error)
        facts = {"outcome": op.outcome, "elapsed": op.elapsed, "now": now}
        facts |= {"error": error, "traceback": traceback}
        cursor.execute(SQL["record_attempt"], place | facts)
    counts = {"retries_used": verdict.retries_used, "crashes": verdict.crashes}
    cursor.execute(SQL["tally_retry"], place | counts | {"elapsed": op.elapsed, "now": now})
    after = int(verdict.after * 1_000_000)
    if verdict.awaits is not None and _is_wait_satisfied(cursor, op.run_id, verdict.awaits):
        after = 0
    cursor.execute(
        SQL["requeue"],
        place
        | {
            "attempt": verdict.attempt,
            **counts,
            "lane": verdict.lane,
            "after": after,
            "recorded": verdict.recorded,
            "now": now,
        },
    )
    if after > 0:
        cursor.execute(SQL["set_aside"], {"run_id": op.run_id})
        cursor.execute(SQL["drop_set_aside"], {"run_id": op.run_id})
    return Settled.DONE


def error_columns(error: ErrorText | None) -> tuple[str | None, str | None, str | None]:
    """Return the error, traceback and fingerprint as they are stored."""
    if error is None:
        return None, None, None
    return str(error), error.traceback or None, error.fingerprint or None


def _is_wait_satisfied(cursor: sqlite3.Cursor, run_id: str, name: str) -> bool:
    """Return whether the wait that a run is about to begin is already over.

    No lock is needed. A transaction that ends the wait also writes, and there is one writer at a
    time.
    """
    found = cursor.execute(SQL["is_wait_satisfied"], {"run_id": run_id, "name": name}).fetchone()
    return bool(found[0])

"""Records how attempts ended. This is the only module that ends an attempt."""

from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Any

import psycopg

from duly.core.outcome import ErrorText
from duly.core.verdict import Finish, Requeue
from duly.store.ops.runs import Settle, Settled
from duly.store.postgres.arrays import flags, numbers, optional_texts, texts
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.reconnecting_connection import ReconnectingConnection
from duly.store.statements import load

SQL = load("postgres", "settle")

BY_OTHERS = frozenset({"lost", "handed_back", "stopped"})
"""Outcomes that only recovery writes. If our claim has such an outcome, it was lost."""

_by_claim = itemgetter(0, 1)
_Claims = set[tuple[str, int]]
_Cursor = psycopg.Cursor[tuple[Any, ...]]


def settle_alone(line: ReconnectingConnection, ops: Sequence[Settle]) -> list[Settled]:
    """Write verdicts in a transaction of their own. After a lost reply, read back the results."""
    finishing, again = _sorted_by_verdict(ops)

    def write(session: PostgresSession, lost: bool) -> list[Settled]:  # noqa: ARG001, FBT001
        if not again:
            ((finished,),) = session.execute_alone(SQL["finish"], _endings(finishing))
            return _answers(session, ops, finished=finished, requeued=set())
        if _awaiting(again):
            session.begin()
            answers = settle(session, ops)
            session.commit_now()
            return answers
        with session.pipeline():
            session.begin()
            first = session.execute(SQL["finish"], _endings(finishing)) if finishing else None
            second = session.execute(SQL["requeue"], _requeues(again))
            session.commit_now()
        return _answers(session, ops, finished=_count(first), requeued=set(second.fetchall()))

    return line.run(write)


def settle(session: PostgresSession, ops: Sequence[Settle]) -> list[Settled]:
    """Write each verdict whose claim still holds, inside a transaction. Return answers per op."""
    finishing, again = _sorted_by_verdict(ops)
    finished = 0
    requeued: _Claims = set()
    if finishing:
        finished = _count(session.execute(SQL["finish"], _endings(finishing)))
    if again:
        awaiting = _awaiting(again)
        roused = _find_satisfied_waits(session, awaiting) if awaiting else set()
        requeued = set(session.execute(SQL["requeue"], _requeues(again, roused)).fetchall())
    return _answers(session, ops, finished=finished, requeued=requeued)


def _find_satisfied_waits(session: PostgresSession, waits: Sequence[tuple[str, str]]) -> set[str]:
    """Return the runs whose wait, which is about to begin, is already satisfied.

    There are two statements. The second sees commits made while the first waited for its locks.
    """
    ids, names = zip(*waits, strict=True)
    place = {"ids": texts(ids), "names": texts(names)}
    session.execute(SQL["lock_waits"], place)
    return {run_id for (run_id,) in session.execute(SQL["is_wait_satisfied"], place).fetchall()}


def place_of(ops: Sequence[Settle]) -> dict[str, str | None]:
    """Return the parameters of the statement `recorded`."""
    return {
        "ids": texts([op.run_id for op in ops]),
        "claim_numbers": numbers(op.claim_number for op in ops),
    }


def is_recorded(op: Settle, found: tuple[Any, ...]) -> bool:
    """Return whether the row that `recorded` found was written by this op."""
    outcome = found[3]
    return outcome is not None and (outcome == op.outcome or outcome not in BY_OTHERS)


def _sorted_by_verdict(ops: Sequence[Settle]) -> tuple[list[Settle], list[Settle]]:
    """Separate the ops that finish from those that requeue, each in the order of locking."""
    ordered = sorted(ops, key=_by_claim)
    finishing = [op for op in ordered if type(op.verdict) is Finish]
    if len(finishing) == len(ordered):
        return _latest(finishing), []
    return _latest(finishing), _latest([op for op in ordered if type(op.verdict) is not Finish])


def _latest(ops: Sequence[Settle]) -> list[Settle]:
    """Return each run's op with its latest claim, since the statements accept a run only once.

    Claims only grow, so an earlier claim of the same run is lost.
    """
    return list({op.run_id: op for op in ops}.values())


def _endings(ops: Sequence[Settle]) -> dict[str, str | None]:
    states, causes, results = zip(*(op.verdict for op in ops), strict=True)
    return _outcomes(ops) | {
        "states": texts(states),
        "causes": optional_texts(causes),
        "results": optional_texts(results),
    }


def _awaiting(ops: Sequence[Settle]) -> list[tuple[str, str]]:
    """Return the runs that suspend until a step, each with the name of that step."""
    verdicts = [(op.run_id, op.verdict) for op in ops]
    return [
        (run_id, verdict.awaits)
        for run_id, verdict in verdicts
        if isinstance(verdict, Requeue) and verdict.awaits is not None
    ]


def _requeues(
    ops: Sequence[Settle], roused: Collection[str] = frozenset()
) -> dict[str, str | None]:
    """Return the columns of the ops that requeue. Runs in `roused` are due at once."""
    verdicts = [op.verdict for op in ops if isinstance(op.verdict, Requeue)]
    afters, attempts, retries_used, crashes, lanes, recorded, *_ = zip(*verdicts, strict=True)
    if roused:
        afters = tuple(
            0.0 if op.run_id in roused else after for op, after in zip(ops, afters, strict=True)
        )
    return _outcomes(ops) | {
        "lanes": texts(lanes),
        "attempts": numbers(attempts),
        "retries_used": numbers(retries_used),
        "crashes": numbers(crashes),
        "afters": numbers(int(after * 1_000_000) for after in afters),
        "recorded": flags(recorded),
    }


def _outcomes(ops: Sequence[Settle]) -> dict[str, str | None]:
    ids, claim_numbers, outcomes, _, elapsed, errors, _ = zip(*ops, strict=True)
    columns: dict[str, str | None] = {
        "ids": texts(ids),
        "claim_numbers": numbers(claim_numbers),
        "outcomes": texts(outcomes),
        "elapsed": numbers(elapsed),
        "errors": None,
        "tracebacks": None,
        "fingerprints": None,
    }
    if any(errors):
        words, tracebacks, fingerprints = zip(*map(_error_columns, errors), strict=True)
        columns["errors"] = optional_texts(words)
        columns["tracebacks"] = optional_texts(tracebacks)
        columns["fingerprints"] = optional_texts(fingerprints)
    return columns


def _error_columns(error: ErrorText | None) -> tuple[str | None, str | None, str | None]:
    if error is None:
        return None, None, None
    return str(error), error.traceback or None, error.fingerprint or None


def _answers(
    session: PostgresSession, ops: Sequence[Settle], *, finished: int, requeued: _Claims
) -> list[Settled]:
    if finished + len(requeued) == len(ops):
        return [Settled.DONE] * len(ops)
    rows = session.execute(SQL["recorded"], place_of(ops)).fetchall()
    found = {(row[0], row[1]): row for row in rows}
    answers = []
    for op in ops:
        claim = (op.run_id, op.claim_number)
        is_requeued = claim in requeued and isinstance(op.verdict, Requeue)
        answers.append(Settled.DONE if is_requeued else _answer(op, found[claim]))
    return answers


def _answer(op: Settle, found: tuple[Any, ...]) -> Settled:
    """Return the answer of one op. A write whose reply was lost counts as done."""
    if is_recorded(op, found):
        return Settled.DONE
    cancel_requested = found[2]
    if cancel_requested and isinstance(op.verdict, Requeue):
        return Settled.CANCEL_REQUESTED
    return Settled.CLAIM_LOST


def _count(cursor: _Cursor | None) -> int:
    row = None if cursor is None else cursor.fetchone()
    return 0 if row is None else int(row[0])

"""Handing runs over to another engine, and back if their task has lost its carrier."""

from typing import Any

from duly.carrier import CarrierMessage
from duly.core.states import agreed_lanes
from duly.core.verdict import undelivered_verdict
from duly.limits import TICK_BATCH
from duly.store.ops.carriers import HandedOver, HandOver, PostponeHandOver, RerouteRuns
from duly.store.postgres.arrays import texts
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.maintenance import note_reached
from duly.store.postgres.transaction import PostgresTransaction
from duly.store.statements import load
from duly.store.verbs.operators import end_queued

SQL = load("duly.store.postgres", "carry")


def hand_over(session: PostgresSession, op: HandOver) -> HandedOver:
    """Mark what is to be sent to its engine, at first or again; end what was so too often."""
    place = op._asdict() | {"tasks": texts(op.tasks)}
    stale = session.execute(SQL["stale"], place).fetchall()
    rows = [row[:-1] for row in stale if op.most is None or row[-1] < op.most]
    worn = [row[0] for row in stale if op.most is not None and row[-1] >= op.most]
    if len(rows) < op.limit:
        rows += session.execute(SQL["fresh"], place | {"limit": op.limit - len(rows)}).fetchall()
    return HandedOver([CarrierMessage._make(row) for row in rows], _give_up(session, worn))


def _give_up(session: PostgresSession, run_ids: list[str]) -> list[str]:
    if not run_ids:
        return []
    # Locked, so that none can have been claimed, and queued anew, since it was found.
    found = session.execute(SQL["worn"], {"run_ids": texts(run_ids)}).fetchall()
    transaction = PostgresTransaction(session)
    for run_id, times in found:
        verdict, error = undelivered_verdict(times)
        end_queued(
            transaction, run_id, state=verdict.state, cause=str(verdict.cause), error=str(error)
        )
    return [run_id for run_id, _ in found]


def postpone_hand_over(session: PostgresSession, op: PostponeHandOver) -> int:
    """Hand runs over again a little later."""
    place = {"run_ids": texts(op.run_ids), "after": op.after}
    return session.execute(SQL["unsent"], place).rowcount


def reroute(session: PostgresSession, op: RerouteRuns) -> int:
    """Move ready runs to where their tasks run now."""
    agreed = agreed_lanes(session.execute(SQL["seen_to"]).fetchall())
    present = {task for (task,) in session.execute(SQL["carried_tasks"]).fetchall()}
    strayed = {task: lane for task, lane in agreed.ours.items() if task in present}
    moved: int = 0
    if strayed:
        ((moved,),) = session.execute(
            SQL["bring_back"], _slot_kind_parameters(strayed, op)
        ).fetchall()
    if agreed.carried:
        place = _slot_kind_parameters(agreed.carried, op) | {"queues": TICK_BATCH}
        ((sent, *queues),) = session.execute(SQL["send_away"], place).fetchall()
        moved += sent
        if sent < op.limit:
            note_reached(session, "sent away", *queues)
    return moved


def _slot_kind_parameters(lanes: dict[str, str], op: RerouteRuns) -> dict[str, Any]:
    return {"tasks": texts(lanes), "lanes": texts(lanes.values()), "limit": op.limit}

"""Handing runs over to another engine, and back if their task has lost its carrier."""

from typing import Any

from duly.carrier import Message
from duly.core.states import agreed_lanes
from duly.store.carry_ops import A_DAY, HandAgain, HandOver, Relane
from duly.store.postgres.columns import texts
from duly.store.postgres.connection import Session
from duly.store.statements import load

SQL = load("duly.store.postgres", "carry")


def hand_over(session: Session, op: HandOver) -> list[Message]:
    """Mark what is to be sent to its engine, for the first time or again."""
    place = op._asdict() | {"tasks": texts(op.tasks), "a_day": A_DAY}
    rows = session.execute(SQL["stale"], place).fetchall()
    if len(rows) < op.limit:
        rows += session.execute(SQL["fresh"], place | {"limit": op.limit - len(rows)}).fetchall()
    return [Message._make(row) for row in rows]


def hand_again(session: Session, op: HandAgain) -> int:
    """Hand runs over again a little later."""
    place = {"run_ids": texts(op.run_ids), "after": op.after}
    return session.execute(SQL["unsent"], place).rowcount


def relane(session: Session, op: Relane) -> int:
    """Move ready runs to where their tasks run now."""
    agreed = agreed_lanes(session.execute(SQL["seen_to"]).fetchall())
    present = {task for (task,) in session.execute(SQL["carried_tasks"]).fetchall()}
    strayed = {task: lane for task, lane in agreed.ours.items() if task in present}
    moved: int = 0
    if strayed:
        ((moved,),) = session.execute(SQL["bring_back"], _homes(strayed, op)).fetchall()
    if agreed.carried:
        moved += session.execute(SQL["send_away"], _homes(agreed.carried, op)).rowcount
    return moved


def _homes(lanes: dict[str, str], op: Relane) -> dict[str, Any]:
    return {"tasks": texts(lanes), "lanes": texts(lanes.values()), "limit": op.limit}

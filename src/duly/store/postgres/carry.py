"""Handing runs over to another engine."""

from duly.carrier import Message
from duly.store.carry_ops import HandAgain, HandOver
from duly.store.postgres.columns import texts
from duly.store.postgres.connection import Session
from duly.store.statements import load

SQL = load("duly.store.postgres", "carry")


def hand_over(session: Session, op: HandOver) -> list[Message]:
    """Mark what is to be sent to its engine, for the first time or again."""
    place = op._asdict() | {"tasks": texts(op.tasks)}
    rows = session.execute(SQL["stale"], place).fetchall()
    if len(rows) < op.limit:
        rows += session.execute(SQL["fresh"], place | {"limit": op.limit - len(rows)}).fetchall()
    return [Message._make(row) for row in rows]


def hand_again(session: Session, op: HandAgain) -> int:
    """Hand runs over again a little later."""
    place = {"run_ids": texts(op.run_ids), "after": op.after}
    return session.execute(SQL["put_off"], place).rowcount

"""Runs that are handed to the workers of another engine, or brought back from there."""

from collections.abc import Mapping

from duly.carrier import CarrierMessage
from duly.core.states import agreed_lanes
from duly.core.verdict import undelivered_verdict
from duly.limits import TICK_BATCH
from duly.store.ops.carriers import HandedOver, HandOver, PostponeHandOver, RerouteRuns
from duly.store.transaction import Rows, Transaction
from duly.store.verbs.operators import end_queued
from duly.store.verbs.verb import verb


@verb(HandOver)
def hand_over(transaction: Transaction, op: HandOver) -> HandedOver:
    """Hand over stale runs again and fresh ones for the first time. End the undelivered ones."""
    messages: list[CarrierMessage] = []
    undelivered: dict[str, int] = {}
    gone: list[str] = []
    for *columns, times in transaction.rows("carry.stale", **op._asdict()):
        message = CarrierMessage._make(columns)
        if message.claim_number is None:
            # Only on SQLite. PostgreSQL deletes these marks in the same statement.
            gone.append(message.run_id)
        elif op.most is not None and times >= op.most:
            undelivered[message.run_id] = times
        else:
            messages.append(message)
    room = op.limit - len(messages)
    if room > 0:
        place = {"tasks": op.tasks, "stale": op.stale, "limit": room}
        messages += map(CarrierMessage._make, transaction.rows("carry.fresh", **place))
    messages.sort(key=lambda message: (-message.priority, message.run_id))
    return HandedOver(messages, _end_undelivered(transaction, undelivered, gone))


def _end_undelivered(
    transaction: Transaction, undelivered: Mapping[str, int], gone: list[str]
) -> list[str]:
    """End runs that were handed over as often as allowed. Return those that no worker claimed."""
    if not undelivered and not gone:
        return []
    rows = transaction.rows("carry.drop_marks", run_ids=[*undelivered, *gone])
    ended = [run_id for (run_id,) in rows if run_id in undelivered]
    for run_id in ended:
        verdict, error = undelivered_verdict(undelivered[run_id])
        cause = {"cause": str(verdict.cause), "error": str(error)}
        end_queued(transaction, run_id, state=verdict.state, **cause)
    return ended


@verb(PostponeHandOver)
def postpone_hand_over(transaction: Transaction, op: PostponeHandOver) -> int:
    """Hand runs over again a little later."""
    return transaction.run("carry.unsent", **op._asdict())


@verb(RerouteRuns)
def reroute(transaction: Transaction, op: RerouteRuns) -> int:
    """Move ready runs to where their tasks run now."""
    agreed = agreed_lanes(transaction.rows("carry.seen_to"))
    present = {task for (task,) in transaction.rows("carry.carried_tasks")}
    strayed = {task: lane for task, lane in agreed.ours.items() if task in present}
    moved: int = 0
    if strayed:
        moved = transaction.value("carry.bring_back", lanes=_rows(strayed), limit=op.limit)
    if agreed.carried:
        moved += _send_away(transaction, agreed.carried, op.limit)
    return moved


def _send_away(transaction: Transaction, lanes: Mapping[str, str], limit: int) -> int:
    place = {"limit": limit, "queues": TICK_BATCH}
    found = transaction.row("carry.send_away", lanes=_rows(lanes), **place)
    assert found is not None  # noqa: S101 - the statement counts
    sent: int
    sent, before, after = found
    if sent < limit and after != before:
        # There are too many queues for one op. The next op continues after these.
        transaction.coordinate("tick.note_reached", name="sent away", reached=after)
    return sent


def _rows(lanes: Mapping[str, str]) -> Rows:
    return Rows(("tasks", "lanes"), list(lanes.items()))

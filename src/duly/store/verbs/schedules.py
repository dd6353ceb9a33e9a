"""Schedules: fire what is due, and change schedules.

Due instants are planned before the transaction. A plan is dropped if its schedule has changed since
it was read. A change first accounts for instants that are due, as the schedule is until then.
"""

from duly.clock import new_id
from duly.core.record import ScheduleRecord
from duly.core.schedule import (
    PlannedFiring,
    anchored,
    first_instant,
    is_same_trigger,
    read_rules,
    read_trigger,
)
from duly.core.schedule_plans import DueSchedule, PlannedSchedule, plan_schedule
from duly.store.ops.schedules import (
    BackfillSchedule,
    Fired,
    FireSchedules,
    PutSchedule,
    PutScheduleResult,
    RunSchedule,
    ScheduleBehind,
    SetScheduleState,
)
from duly.store.transaction import Transaction
from duly.store.verbs import firings
from duly.store.verbs.firing_rows import cut_rows, rewind
from duly.store.verbs.firings import fire_instants, lock_schedule
from duly.store.verbs.operators import insert_audit_entry
from duly.store.verbs.verb import verb

_ACTS = {"paused": "pause schedule", "active": "resume schedule", "removed": "remove schedule"}


@verb(FireSchedules)
def fire(transaction: Transaction, op: FireSchedules) -> Fired:
    """Write the plans of the schedules that have not changed since they were read."""
    rewound = sum([rewind(transaction, name) for name in op.ahead])
    names = [planned.schedule.name for planned in op.planned]
    rows = transaction.rows("schedules.lock_free", names=names)
    locked = {ScheduleRecord._make(row) for row in rows}
    # A schedule that becomes late between the two reads of a look is planned twice.
    current = {planned.schedule: planned for planned in op.planned if planned.schedule in locked}
    runs = firings.write_plans(transaction, list(current.values()))
    return Fired(len(current), runs, rewound=rewound)


@verb(PutSchedule)
def put(transaction: Transaction, op: PutSchedule) -> PutScheduleResult | ScheduleBehind:
    """Add a schedule, or change the one with that name."""
    now = transaction.value("schedules.lock_name", name=op.name)
    found = lock_schedule(transaction, op.name)
    if found is None or found.schedule.state == "removed":
        known, now = (None, now) if found is None else (found.schedule, found.now)
        _write(transaction, _wanted(op, now, known))
        return PutScheduleResult("created", op.source, op.place)
    known = found.schedule
    has_ended = known.state == "ended"
    if known.source != op.source or (op.on_duplicate == "error" and not has_ended):
        return PutScheduleResult("refused", known.source, known.place)
    if op.on_duplicate == "keep" and not has_ended:
        return PutScheduleResult("kept", known.source, known.place)
    has_same_times = is_same_trigger(op.trigger, known.trigger) and not has_ended
    is_same = has_same_times and (op.rules, op.place) == (known.rules, known.place)
    if is_same and _compared_fields(op) == _compared_fields(known):
        return PutScheduleResult("unchanged", known.source, known.place)
    caught_up = _catch_up(transaction, found)
    if isinstance(caught_up, ScheduleBehind):
        return caught_up
    if has_same_times:
        # An interval keeps the anchor that it counts from.
        op = op._replace(trigger=known.trigger)
    _write(transaction, _wanted(op, found.now, caught_up))
    return PutScheduleResult("changed", op.source, op.place)


@verb(SetScheduleState)
def set_state(transaction: Transaction, op: SetScheduleState) -> str | ScheduleBehind | None:
    """Pause, resume or remove a schedule, and return the state that it had."""
    found = lock_schedule(transaction, op.name)
    if found is None or found.schedule.state == "removed":
        return None
    known = _catch_up(transaction, found)
    if isinstance(known, ScheduleBehind):
        return known
    if known.state == "ended" and op.state != "removed":
        return known.state
    has_new_reason = op.state == "paused" and op.reason not in {"", known.reason}
    if known.state == op.state and not has_new_reason:
        return known.state
    _record_act(transaction, op, _ACTS[op.state])
    if op.state == "removed":
        transaction.run("schedules.drop_waiting", schedule=op.name, reason="removed")
        known = known._replace(waiting=0, look_at=None)
    elif op.state == "active" and known.waiting:
        known = known._replace(look_at=found.now)
    reason = (op.reason or f"by {op.actor}") if op.state != "active" else None
    _write(transaction, known._replace(state=op.state, reason=reason, updated_at=found.now))
    return known.state


@verb(RunSchedule)
def run_now(transaction: Transaction, op: RunSchedule) -> str | None:
    """Fire a schedule now, in addition to its due instants and whatever its state."""
    found = lock_schedule(transaction, op.name)
    if found is None or found.schedule.state == "removed":
        return None
    _record_act(transaction, op, "run schedule")
    run_id, firing = new_id(), PlannedFiring(found.now, "run", f"by {op.actor}")
    while not fire_instants(transaction, found.schedule, {run_id: firing}):
        # Another firing has this instant already.
        firing = firing._replace(instant=firing.instant + 1)
    return run_id


@verb(BackfillSchedule)
def backfill(transaction: Transaction, op: BackfillSchedule) -> list[str] | ScheduleBehind | None:
    """Run instants that were skipped, or that are earlier than the schedule."""
    found = lock_schedule(transaction, op.name)
    if found is None or found.schedule.state == "removed":
        return None
    known = _catch_up(transaction, found)
    if isinstance(known, ScheduleBehind):
        return known
    _record_act(transaction, op, "backfill schedule")
    # Instants from the cursor on will fire by themselves.
    until = found.now + 1 if known.next_at is None else known.next_at
    past = [instant for instant in op.instants if instant < until]
    if past:
        cut_rows(transaction, known, past)
    wanted = {new_id(): PlannedFiring(each, "caught_up", f"by {op.actor}") for each in past}
    return fire_instants(transaction, found.schedule, wanted, replaces_skipped=True)


def _catch_up(transaction: Transaction, found: DueSchedule) -> ScheduleRecord | ScheduleBehind:
    """Account for what is due by now, and return the schedule as it is then.

    One op accounts for at most as many instants as one plan, so that other writers do not wait for
    long.
    """
    if not _is_due(found.schedule, found.now):
        return found.schedule
    planned = PlannedSchedule(found.schedule, plan_schedule(found))
    firings.write_plans(transaction, [planned])
    again = lock_schedule(transaction, found.schedule.name)
    assert again is not None  # noqa: S101 - it is locked
    return ScheduleBehind() if _is_due(again.schedule, found.now) else again.schedule


def _is_due(schedule: ScheduleRecord, now: int) -> bool:
    return schedule.look_at is not None and schedule.look_at <= now


def _compared_fields(given: PutSchedule | ScheduleRecord) -> tuple[object, ...]:
    return (
        given.task,
        given.queue,
        given.lane,
        given.priority,
        given.arguments,
        given.expires,
    )


def _wanted(op: PutSchedule, now: int, known: ScheduleRecord | None) -> ScheduleRecord:
    """Return the schedule that the op describes, from now on. A change does not end a pause."""
    trigger = anchored(op.trigger, now)
    next_at, look_at = first_instant(op.name, read_trigger(trigger), read_rules(op.rules), now)
    waiting = known.waiting if known is not None else 0
    has_ended = look_at is None and not waiting
    is_paused = known is not None and known.state == "paused" and not has_ended
    if waiting and not is_paused:
        look_at = now
    return ScheduleRecord(
        op.name,
        known.version + 1 if known is not None else 1,
        op.source,
        op.place,
        op.task,
        op.queue,
        op.lane,
        op.priority,
        op.arguments,
        op.expires,
        trigger,
        op.rules,
        "ended" if has_ended else "paused" if is_paused else "active",
        known.reason if known is not None and is_paused else None,
        next_at,
        look_at,
        waiting,
        known.last_run_id if known is not None else None,
        known.created_at if known is not None else now,
        now,
    )


def _write(transaction: Transaction, schedule: ScheduleRecord) -> None:
    """Write a schedule, whether it exists or not."""
    pause_after = read_rules(schedule.rules).pause_after
    transaction.run("schedules.put", **schedule._asdict(), pause_after=pause_after)


def _record_act(
    transaction: Transaction, op: SetScheduleState | RunSchedule | BackfillSchedule, act: str
) -> None:
    """Record an operator's action in the audit log."""
    insert_audit_entry(transaction, op.actor, act, f"schedule {op.name}", op.reason)

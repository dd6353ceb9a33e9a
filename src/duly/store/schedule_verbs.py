"""What the ops of schedules do, in terms of a few statements that each database has its own way of.

An instant is decided about once: its firing, its run and the moved cursor are one transaction that
locks the schedule's row. What is due is planned before that transaction; a plan whose schedule has
changed since it was read is dropped.
"""

from bisect import bisect_right

from duly.clock import new_id
from duly.core.json_text import to_text
from duly.core.record import ScheduleRecord
from duly.core.schedule import (
    DateTrigger,
    PlannedFiring,
    anchored,
    first_instant,
    is_same_trigger,
    read_rules,
    read_trigger,
    row_of,
    split_row,
)
from duly.core.schedule_plans import DueSchedule, PlannedSchedule, plan_schedule
from duly.errors import BadSchedule
from duly.store.ops.runs import Enqueue
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
from duly.store.schedule_statements import FiringRow, SchedulePosition, ScheduleStatements

_LAST_INSTANT = 2**62 // 20
"""Later than every instant, and still a time to PostgreSQL."""


def fire(on: ScheduleStatements, op: FireSchedules) -> Fired:
    """Write the plans of schedules that nobody has changed since they were read."""
    rewound = sum([_rewind(on, name) for name in op.ahead])
    locked = set(on.lock_free([planned.schedule.name for planned in op.planned]))
    current = [planned for planned in op.planned if planned.schedule in locked]
    return Fired(len(current), _carry_out(on, current), rewound=rewound)


def put(on: ScheduleStatements, op: PutSchedule) -> PutScheduleResult | ScheduleBehind:
    """Add a schedule or change it; what an older one has missed is accounted for first."""
    now = on.lock_name(op.name)
    found = on.lock_one(op.name)
    if found is None or found.schedule.state == "removed":
        on.put(_wanted(op, now, found and found.schedule), read_rules(op.rules).pause_after)
        return PutScheduleResult("created", op.source, op.place)
    known = found.schedule
    has_ended = known.state == "ended"
    if known.source != op.source or (op.on_duplicate == "error" and not has_ended):
        return PutScheduleResult("refused", known.source, known.place)
    if op.on_duplicate == "keep" and not has_ended:
        return PutScheduleResult("kept", known.source, known.place)
    is_when = is_same_trigger(op.trigger, known.trigger) and not has_ended
    is_same = is_when and (op.rules, op.place) == (known.rules, known.place)
    if is_same and _compared_fields(op) == _compared_fields(known):
        return PutScheduleResult("unchanged", known.source, known.place)
    caught_up = _catch_up(on, found)
    if isinstance(caught_up, ScheduleBehind):
        return caught_up
    if is_when:
        # An interval goes on counting from where it began.
        op = op._replace(trigger=known.trigger)
    on.put(_wanted(op, found.now, caught_up), read_rules(op.rules).pause_after)
    return PutScheduleResult("changed", op.source, op.place)


def _compared_fields(given: PutSchedule | ScheduleRecord) -> tuple[object, ...]:
    return (
        given.task,
        given.queue,
        given.lane,
        given.priority,
        given.arguments,
        given.expires,
    )


def set_state(on: ScheduleStatements, op: SetScheduleState) -> str | ScheduleBehind | None:
    """Pause, resume or remove; what was due before counts by how things stood then."""
    found = on.lock_one(op.name)
    if found is None or found.schedule.state == "removed":
        return None
    known = _catch_up(on, found)
    if isinstance(known, ScheduleBehind):
        return known
    if known.state == "ended" and op.state != "removed":
        return known.state
    is_told_more = op.state == "paused" and op.reason not in {"", known.reason}
    if known.state == op.state and not is_told_more:
        return known.state
    on.insert_audit_entry(op.actor, _ACTS[op.state], f"schedule {op.name}", op.reason)
    if op.state == "removed":
        on.drop_waiting(op.name, "removed")
        known = known._replace(waiting=0, look_at=None)
    elif op.state == "active" and known.waiting:
        known = known._replace(look_at=found.now)
    reason = (op.reason or f"by {op.actor}") if op.state != "active" else None
    changed = known._replace(state=op.state, reason=reason, updated_at=found.now)
    on.put(changed, read_rules(known.rules).pause_after)
    return known.state


def run_now(on: ScheduleStatements, op: RunSchedule) -> str | None:
    """Fire beside all due instants, whatever the schedule's state."""
    found = on.lock_one(op.name)
    if found is None or found.schedule.state == "removed":
        return None
    on.insert_audit_entry(op.actor, "run schedule", f"schedule {op.name}", op.reason)
    run_id = new_id()
    _fire_rows(on, found, [PlannedFiring(found.now, "run", f"by {op.actor}")], [run_id])
    return run_id


def backfill(on: ScheduleStatements, op: BackfillSchedule) -> list[str] | ScheduleBehind | None:
    """Run instants that were skipped, or that lie before the schedule's time."""
    found = on.lock_one(op.name)
    if found is None or found.schedule.state == "removed":
        return None
    known = _catch_up(on, found)
    if isinstance(known, ScheduleBehind):
        return known
    on.insert_audit_entry(op.actor, "backfill schedule", f"schedule {op.name}", op.reason)
    # What is still to come will fire by itself.
    until = found.now + 1 if known.next_at is None else known.next_at
    past = [instant for instant in op.instants if instant < until]
    if past:
        _cut_rows(on, known, past)
    firings = [PlannedFiring(instant, "caught_up", f"by {op.actor}") for instant in past]
    return _fire_rows(on, found, firings, [new_id() for _ in firings], makes_up=True)


def _cut_rows(on: ScheduleStatements, schedule: ScheduleRecord, out: list[int]) -> None:
    """Take instants out of the long rows that count them, so that each can have its own."""
    trigger = read_trigger(schedule.trigger)
    for row in on.rows_within(schedule.name, min(out), max(out)):
        if row.row == 1:
            continue
        # Of a row that another trigger made nobody knows the instants.
        counted = row_of(trigger, row.instant, row.last_instant, count=row.row)
        inside = on.rows_within(schedule.name, row.instant, row.last_instant)
        # One that was made up for under another trigger has a row of its own already.
        pieces = split_row(counted, {*out, *(other.instant for other in inside if other.row == 1)})
        if counted and [len(piece) for piece in pieces] != [len(counted)]:
            on.drop_row(schedule.name, row.instant)
            for piece in pieces:
                on.write_row(row._replace(instant=piece[0], last_instant=piece[-1], row=len(piece)))


_ACTS = {"paused": "pause schedule", "active": "resume schedule", "removed": "remove schedule"}


def _carry_out(on: ScheduleStatements, planned: list[PlannedSchedule]) -> int:
    """Write plans of schedules that are locked; return how many runs that made."""
    rows: list[FiringRow] = []
    runs: dict[tuple[str, int], Enqueue] = {}
    released: list[tuple[ScheduleRecord, str]] = []
    for schedule, made, _ in planned:
        for firing in made.firings:
            run_id = new_id() if firing.outcome in {"run", "caught_up"} else None
            rows.append(_row(schedule, firing, run_id))
            if run_id is not None:
                runs[schedule.name, firing.instant] = _enqueue(schedule, run_id)
        if made.release:
            released.append((schedule, new_id()))
    new = on.add_firings(rows, makes_up=False) if rows else set()
    ops = [run for place, run in runs.items() if place in new]
    last = {place[0]: run.run_id for place, run in runs.items() if place in new}
    for schedule, run_id in released:
        if on.release(schedule.name, run_id):
            ops.append(_enqueue(schedule, run_id))
            last[schedule.name] = run_id
    if ops:
        on.enqueue(ops)
    if planned:
        on.move([_move(each, last, new) for each in planned])
    return len(ops)


def _move(
    planned: PlannedSchedule, last: dict[str, str], new: set[tuple[str, int]]
) -> SchedulePosition:
    schedule, made, _ = planned
    queued = sum(f.outcome == "waiting" and (schedule.name, f.instant) in new for f in made.firings)
    waiting = max(0, schedule.waiting + queued - made.release)
    state, reason = schedule.state, made.broken or schedule.reason
    if made.broken is None and state == "active":
        reason = None
    if made.pause is not None:
        state, reason = "paused", made.pause
    elif made.look_at is None and not waiting:
        # What waits while it is paused goes on when it is resumed.
        state, reason = "ended", None
    return SchedulePosition(
        schedule.name,
        made.next_at,
        made.look_at,
        waiting,
        state,
        reason,
        last.get(schedule.name),
    )


def _catch_up(on: ScheduleStatements, found: DueSchedule) -> ScheduleRecord | ScheduleBehind:
    """Account for what is due by now, as the schedule stands; return it as it is then.

    As far as one look goes, so that nobody else waits for long.
    """
    if not _is_due(found.schedule, found.now):
        return found.schedule
    _carry_out(on, [PlannedSchedule(found.schedule, plan_schedule(found))])
    again = on.lock_one(found.schedule.name)
    assert again is not None  # noqa: S101 - it is locked
    return ScheduleBehind() if _is_due(again.schedule, found.now) else again.schedule


def _is_due(schedule: ScheduleRecord, now: int) -> bool:
    return schedule.look_at is not None and schedule.look_at <= now


def _rewind(on: ScheduleStatements, name: str) -> bool:
    """Let a schedule continue from now that fired by a clock that was ahead; return if it does.

    Instants that it skipped meanwhile were not due; they are forgotten, and planned again when they
    are. Instants that have run keep their rows, and so do not run again.
    """
    found = on.lock_one(name)
    if found is None:
        return False
    schedule, now = found.schedule, found.now
    try:
        trigger, rules = read_trigger(schedule.trigger), read_rules(schedule.rules)
    except BadSchedule:
        # Its firings stay ahead, so that a process that can read it finds it and rewinds it.
        return False
    on.date_back(name)
    if schedule.state == "removed":
        return True
    ran, is_paused = set(), schedule.state == "paused"
    for row in on.rows_within(name, now + 1, _LAST_INSTANT):
        if row.outcome != "skipped":
            ran.add(row.instant)
            continue
        is_paused = is_paused or row.reason == "paused"
        counted = row_of(trigger, row.instant, row.last_instant, count=row.row)
        past = counted[: bisect_right(counted, now)]
        on.drop_row(name, row.instant)
        if past:
            on.write_row(row._replace(last_instant=past[-1], row=len(past), fired_at=now))
    next_at, look_at = first_instant(name, trigger, rules, now)
    if next_at is None or (isinstance(trigger, DateTrigger) and next_at in ran):
        return True
    state = "paused" if is_paused else "active"
    on.move(
        [SchedulePosition(name, next_at, look_at, schedule.waiting, state, schedule.reason, None)]
    )
    return True


def _fire_rows(
    on: ScheduleStatements,
    found: DueSchedule,
    firings: list[PlannedFiring],
    run_ids: list[str],
    *,
    makes_up: bool = False,
) -> list[str]:
    pairs = list(zip(firings, run_ids, strict=True))
    rows = [_row(found.schedule, firing, run_id) for firing, run_id in pairs]
    new = on.add_firings(rows, makes_up=makes_up) if rows else set()
    fired = [run_id for firing, run_id in pairs if (found.schedule.name, firing.instant) in new]
    if fired:
        on.enqueue([_enqueue(found.schedule, run_id) for run_id in fired])
    return fired


def _row(schedule: ScheduleRecord, firing: PlannedFiring, run_id: str | None) -> FiringRow:
    last = firing.last_instant or firing.instant
    return FiringRow(
        schedule.name,
        firing.instant,
        last,
        firing.row,
        schedule.version,
        firing.outcome,
        firing.reason,
        run_id,
    )


def _enqueue(schedule: ScheduleRecord, run_id: str) -> Enqueue:
    return Enqueue(
        run_id,
        schedule.task,
        schedule.queue,
        schedule.lane,
        schedule.priority,
        schedule.arguments,
        delay=0,
        at=None,
        expires=schedule.expires,
        tags=to_text({"schedule": schedule.name}),
        key=None,
    )


def _wanted(op: PutSchedule, now: int, known: ScheduleRecord | None) -> ScheduleRecord:
    """Return the schedule as asked for, beginning now; a pause outlives what is changed."""
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

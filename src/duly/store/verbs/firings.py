"""Firings of schedules: a firing, its run and the moved cursor are one transaction.

So the outcome of an instant is decided once. The transaction holds the lock of the schedule's row.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from duly.clock import new_id
from duly.core.json_text import to_text
from duly.core.record import ScheduleRecord
from duly.core.schedule import PlannedFiring, PreviousRuns
from duly.core.schedule_plans import DueSchedule, PlannedSchedule
from duly.store.ops.runs import Enqueue
from duly.store.transaction import Rows, Transaction


class FiringRow(NamedTuple):
    """A new row of `duly_firings`."""

    schedule: str
    instant: int
    last_instant: int
    row: int
    """The number of instants, from the first to the last."""
    version: int
    outcome: str
    reason: str | None
    run_id: str | None


class SchedulePosition(NamedTuple):
    """The columns of a schedule that its firings change."""

    name: str
    next_at: int | None
    look_at: int | None
    waiting: int
    state: str
    reason: str | None
    last_run_id: str | None
    """The id of the newest run. None if the firings created no run."""


_FIRING_ARRAYS = (
    *("schedules", "instants", "last_instants", "counts"),
    *("versions", "outcomes", "reasons", "run_ids"),
)
_POSITION_ARRAYS = (
    *("names", "next_ats", "look_ats", "waiting"),
    *("states", "reasons", "last_run_ids"),
)


def lock_schedule(transaction: Transaction, name: str) -> DueSchedule | None:
    """Lock a schedule, and return it with the state of its previous runs."""
    found = transaction.row("schedules.one", name=name)
    if found is None:
        return None
    *fields, pause_after, now = found
    schedule = ScheduleRecord._make(fields)
    return DueSchedule(schedule, _previous_runs(transaction, schedule, pause_after), now)


def _previous_runs(
    transaction: Transaction, schedule: ScheduleRecord, pause_after: int | None
) -> PreviousRuns:
    # These statements come after the lock. A statement that waits for a lock reads the other tables
    # as they were before it waited.
    last = schedule.last_run_id
    is_busy = last is not None and transaction.run("schedules.live", run_id=last) > 0
    has_failed = False
    if pause_after is not None:
        limits = {"schedule": schedule.name, "limit": pause_after}
        has_failed = transaction.value("schedules.failures", **limits) >= pause_after
    return PreviousRuns(is_busy, has_failed)


def write_plans(transaction: Transaction, planned: Sequence[PlannedSchedule]) -> int:
    """Write the plans of locked schedules. Return the number of runs that this created."""
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
    new = _add_firings(transaction, rows, replaces_skipped=False)
    enqueues = [run for place, run in runs.items() if place in new]
    last = {place[0]: run.run_id for place, run in runs.items() if place in new}
    for schedule, run_id in released:
        if transaction.run("schedules.release", schedule=schedule.name, run_id=run_id):
            enqueues.append(_enqueue(schedule, run_id))
            last[schedule.name] = run_id
    if enqueues:
        transaction.enqueue(enqueues)
    if planned:
        move(transaction, [position_after(each, last, new) for each in planned])
    return len(enqueues)


def fire_instants(
    transaction: Transaction,
    schedule: ScheduleRecord,
    wanted: Mapping[str, PlannedFiring],
    *,
    replaces_skipped: bool = False,
) -> list[str]:
    """Fire instants that an operator asked for, by the ids of their runs.

    Instants that are accounted for are left out. If `replaces_skipped` is set, skipped ones run.
    Return the ids of the runs that this created.
    """
    rows = [_row(schedule, firing, run_id) for run_id, firing in wanted.items()]
    new = _add_firings(transaction, rows, replaces_skipped=replaces_skipped)
    fired = [run_id for run_id, firing in wanted.items() if (schedule.name, firing.instant) in new]
    if fired:
        transaction.enqueue([_enqueue(schedule, run_id) for run_id in fired])
    return fired


def move(transaction: Transaction, positions: Sequence[SchedulePosition]) -> None:
    """Write the new positions of schedules."""
    # Rows are always locked in the same order.
    transaction.run("schedules.move", positions=Rows(_POSITION_ARRAYS, sorted(positions)))


def position_after(
    planned: PlannedSchedule, last: dict[str, str], new: set[tuple[str, int]]
) -> SchedulePosition:
    """Return the position of a schedule after its plan, given the new runs and firings."""
    schedule, made, _ = planned
    queued = sum(f.outcome == "waiting" and (schedule.name, f.instant) in new for f in made.firings)
    waiting = max(0, schedule.waiting + queued - made.release)
    state, reason = schedule.state, made.broken or schedule.reason
    if made.broken is None and state == "active":
        reason = None
    if made.pause is not None:
        state, reason = "paused", made.pause
    elif made.look_at is None and not waiting:
        # A paused schedule with waiting firings has not ended: they run when it is resumed.
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


def _add_firings(
    transaction: Transaction, rows: Sequence[FiringRow], *, replaces_skipped: bool
) -> set[tuple[str, int]]:
    """Write firings that are not accounted for yet, and return their schedules and instants."""
    if not rows:
        return set()
    # Rows are always locked in the same order.
    ordered = sorted(rows, key=lambda row: row[:2])
    found = transaction.rows(
        "schedules.add_firings",
        firings=Rows(_FIRING_ARRAYS, ordered),
        replaces_skipped=replaces_skipped,
    )
    return {(schedule, instant) for schedule, instant in found}


def _row(schedule: ScheduleRecord, firing: PlannedFiring, run_id: str | None) -> FiringRow:
    return FiringRow(
        schedule.name,
        firing.instant,
        firing.last_instant or firing.instant,
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

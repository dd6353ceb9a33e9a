"""Plans the due schedules within a budget of instants and of rows.

Planning needs no transaction. A plan is valid only if its schedule has not changed since it was
read. So the caller reads, plans, and then writes while it holds the schedules' locks.
"""

from collections.abc import Iterable
from typing import NamedTuple

from duly.core.cron import Cron
from duly.core.record import ScheduleRecord
from duly.core.schedule import Plan, PreviousRuns, plan, read_trigger
from duly.limits import LOOK_BYTES, LOOK_INSTANTS, LOOK_ROWS

_BROKEN_PAUSE = 60_000_000
"""The interval after which a schedule that could not be planned is tried again."""


class DueSchedule(NamedTuple):
    """A due schedule, and the facts that its plan depends on."""

    schedule: ScheduleRecord
    standing: PreviousRuns
    now: int


class PlannedSchedule(NamedTuple):
    """A schedule as it was read, and its plan."""

    schedule: ScheduleRecord
    plan: Plan
    is_behind: bool = False
    """True if more instants were due than the plan accounts for."""


def plan_due(found: Iterable[DueSchedule]) -> list[PlannedSchedule]:
    """Plan schedules in order until the budget is used up. At least the first one is planned."""
    planned: list[PlannedSchedule] = []
    instants, rows, size = LOOK_INSTANTS, LOOK_ROWS, LOOK_BYTES
    for each in found:
        if min(instants, rows, size) <= 0:
            break
        made = plan_schedule(each, rows=rows, size=size)
        is_behind = made.look_at is not None and made.look_at <= each.now
        planned.append(PlannedSchedule(each.schedule, made, is_behind))
        instants -= _counted(each.schedule, made)
        rows -= len(made.firings)
        size -= len(made.firings) * len(each.schedule.arguments)
    return planned


def plan_schedule(found: DueSchedule, *, rows: int = LOOK_ROWS, size: int = LOOK_BYTES) -> Plan:
    """Plan one schedule, with at most `rows` runs and `size` bytes of arguments."""
    schedule = found.schedule
    room = max(1, min(rows, size // max(1, len(schedule.arguments))))
    try:
        return plan(schedule, found.now, found.standing, room=room)
    except Exception as error:  # noqa: BLE001 - one schedule must not keep the others from firing
        # For example, this machine does not have the time zone. Another machine may have it.
        return Plan([], schedule.next_at, found.now + _BROKEN_PAUSE, broken=str(error))


def _counted(schedule: ScheduleRecord, made: Plan) -> int:
    """Return how many instants were computed one by one. Instants of an interval never are."""
    is_cron = made.broken is None and isinstance(read_trigger(schedule.trigger), Cron)
    return sum(firing.row for firing in made.firings) if is_cron else len(made.firings)

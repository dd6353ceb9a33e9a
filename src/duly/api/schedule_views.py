"""Schedules and their firings, as a program sees them."""

import json
from dataclasses import dataclass, field
from datetime import datetime

from duly.core.cron import Cron
from duly.core.instants import moment
from duly.core.record import FiringRecord, ScheduleRecord
from duly.core.schedule import read_rules, read_trigger
from duly.errors import BadSchedule


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule as it stands."""

    name: str
    task: str
    arguments: str = field(repr=False)
    """As stored: secret ones are not left out."""
    state: str
    """active, paused, ended or removed."""
    reason: str | None
    """Why it is not active, or what is wrong with it."""
    when: str
    """In words."""
    cron: str | None
    """The expression, if it has one."""
    tz: str
    next_at: datetime | None
    misfire: str
    overlap: str
    waiting: int
    """Firings that wait for the last run to end."""
    source: str
    """Whether "code" defines it, or "runtime" did."""
    place: str
    version: int
    is_registered: bool
    """Whether a live worker knows its task; otherwise its runs wait for one."""


@dataclass(frozen=True, slots=True)
class FiringView:
    """What became of a due instant."""

    instant: datetime
    outcome: str
    """run, caught_up, waiting or skipped."""
    reason: str | None
    run_id: str | None
    fired_at: datetime
    instants: int = 1
    """More than one for a long row of them that were skipped for one reason."""
    last_instant: datetime | None = None
    run_state: str | None = None
    """How its run stands, or ended; None if there is no run, or if it was pruned."""


def schedule_view(schedule: ScheduleRecord, tasks: frozenset[str]) -> ScheduleView:
    """Return a schedule as a program sees it; `tasks` are those that live workers know."""
    rules = read_rules(schedule.rules)
    try:
        trigger = read_trigger(schedule.trigger)
    except BadSchedule:  # Of a time zone that this machine does not know.
        data = json.loads(schedule.trigger)
        when, tz = str(data.get("cron")), str(data.get("tz"))
    else:
        when, tz = trigger.in_words(), trigger.zone if isinstance(trigger, Cron) else "UTC"
    return ScheduleView(
        schedule.name,
        schedule.task,
        schedule.arguments,
        schedule.state,
        schedule.reason,
        when,
        json.loads(schedule.trigger).get("cron"),
        tz,
        None if schedule.next_at is None else moment(schedule.next_at),
        rules.misfire,
        rules.overlap,
        schedule.waiting,
        schedule.source,
        schedule.place,
        schedule.version,
        schedule.task in tasks,
    )


def firing_view(row: FiringRecord) -> FiringView:
    """Return a row of the ledger as a program sees it."""
    return FiringView(
        moment(row.instant),
        row.outcome,
        row.reason,
        row.run_id,
        moment(row.fired_at),
        row.row,
        moment(row.last_instant),
        row.run_state,
    )


def module_of(task: str) -> str:
    """Return the module that a task's name begins with."""
    # Django's tasks are named by dotted paths.
    return task.rpartition(":" if ":" in task else ".")[0]

"""Schedules and their firings, in the form that programs get."""

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
    """The current state of a schedule."""

    name: str
    task: str
    arguments: str = field(repr=False)
    """As stored: secrets are not masked."""
    state: str
    """active, paused, ended or removed."""
    reason: str | None
    """Why it is not active, or its current problem."""
    when: str
    """A description in English."""
    cron: str | None
    """The expression, if it has one."""
    tz: str
    next_at: datetime | None
    misfire: str
    overlap: str
    waiting: int
    """The number of firings that wait for the last run to end."""
    source: str
    """"code" if the code defines it, "runtime" if it was added at run time."""
    place: str
    version: int
    is_registered: bool
    """True if a live worker knows its task. Otherwise its runs wait for one."""


@dataclass(frozen=True, slots=True)
class FiringView:
    """The outcome of a due instant."""

    instant: datetime
    outcome: str
    """run, caught_up, waiting or skipped."""
    reason: str | None
    run_id: str | None
    fired_at: datetime
    instants: int = 1
    """More than one if several consecutive instants were skipped for one reason."""
    last_instant: datetime | None = None
    run_state: str | None = None
    """The state of its run. None if there is no run, or if it was deleted."""


def schedule_view(schedule: ScheduleRecord, tasks: frozenset[str]) -> ScheduleView:
    """Return the view of a schedule. `tasks` are the tasks that live workers know."""
    rules = read_rules(schedule.rules)
    try:
        trigger = read_trigger(schedule.trigger)
    except BadSchedule:  # It has a time zone that this machine does not know.
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
    """Return the view of a stored firing."""
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

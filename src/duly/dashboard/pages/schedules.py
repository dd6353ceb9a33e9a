"""The pages of schedules: triggers in words, next instants, and firings."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

from starlette.requests import Request

from duly.api.schedule_views import ScheduleView
from duly.core.instants import microseconds_of, moment
from duly.core.record import FiringRecord, ScheduleRecord
from duly.core.schedule import instants, read_rules, read_trigger
from duly.dashboard.application_view import ApplicationView
from duly.dashboard.pages import PageContent, PageNotFound
from duly.errors import BadSchedule, DulyError
from duly.limits import PAGE_DEFAULT
from duly.store.reads import ScheduleFilter

_FIRES = 5
_OUTCOMES = 20
_WEEK = 7
_IN_A_DAY = 12
_COUNTED = 2_000
"""The maximum for counting the instants of a day."""


def schedules(view: ApplicationView, request: Request) -> PageContent:
    """List schedules."""
    now = view.store.now()
    after = request.query_params.get("after", "").replace("\0", "")
    page = view.schedules.page(after, PAGE_DEFAULT)
    return PageContent(
        "schedules.html",
        {
            "now": now,
            "schedules": [(each, _outcomes(view, each.name)) for each in page],
            "after": after,
            "following": page[-1].name if len(page) == PAGE_DEFAULT else None,
        },
    )


def schedule(view: ApplicationView, request: Request) -> PageContent:
    """Show one schedule."""
    name = str(request.path_params["name"])
    try:
        found = view.schedules.get(name)
    except DulyError:
        raise PageNotFound(f"There is no schedule {name!r}; see the list of schedules.") from None
    now = view.store.now()
    return PageContent(
        "schedule.html",
        {
            "now": now,
            "schedule": found,
            "next": _next(view, found),
            "firings": view.schedules.firings(name, limit=_OUTCOMES),
            "week": _week(view, found, now),
            "zone": _zone(found.tz),
            "acts": view.store.list_audit_entries(f"schedule {name}", _OUTCOMES),
            "next_at": None if found.next_at is None else microseconds_of(found.next_at),
        },
    )


def _outcomes(view: ApplicationView, name: str) -> Sequence[tuple[str, str]]:
    """Return its last firings, oldest first: each as a state or an outcome, and words."""
    found = view.store.list_firings(name, 2**62, _OUTCOMES)
    return [_outcome(row) for row in reversed(found)]


def _outcome(row: FiringRecord) -> tuple[str, str]:
    outcome = row.outcome.replace("_", " ")
    if row.run_id is None:
        return row.outcome, outcome if row.reason is None else f"{outcome}: {row.reason}"
    if row.run_state is None:
        return "pruned", f"{outcome}: no longer on record"
    return row.run_state, f"{outcome}: {row.run_state}"


def _next(view: ApplicationView, schedule: ScheduleView) -> Sequence[datetime]:
    try:
        return view.schedules.next(schedule.name, _FIRES)
    except BadSchedule:  # This machine does not know the time zone.
        return []


def _zone(name: str) -> ZoneInfo:
    """Return the zone for displayed times. It is UTC if this machine does not know the name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError):
        return ZoneInfo("UTC")


class Day(NamedTuple):
    """A calendar day in the schedule's own zone."""

    date: datetime
    fires: list[datetime]
    """The first instants of the day."""
    more: str
    """The number of further instants, empty if there are none."""
    change: str
    """The clock change on that day, if there is one."""


def _week(view: ApplicationView, schedule: ScheduleView, now: int) -> list[Day]:
    (record,) = view.store.list_schedules(ScheduleFilter(schedule.name, removed=True))
    try:
        return week(_due(record), ZoneInfo(schedule.tz), now)
    except (BadSchedule, KeyError, ValueError):  # This machine does not know the zone.
        return []


def week(due: Callable[[int], Iterator[int]], zone: ZoneInfo, now: int) -> list[Day]:
    """Return the instants of the coming week by calendar day in a zone.

    `due` returns the instants after a given one. It is called again for each day, so that a day
    with many instants does not use up the count of the next one.
    """
    today = moment(now).astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    days = []
    for number in range(_WEEK):
        # Computed by the calendar, since a day may have 23 or 25 hours.
        begin = (today.replace(tzinfo=None) + timedelta(days=number)).replace(tzinfo=zone)
        end = (today.replace(tzinfo=None) + timedelta(days=number + 1)).replace(tzinfo=zone)
        until = microseconds_of(end)
        mine = takewhile(until.__gt__, due(microseconds_of(begin) - 1))
        first = [moment(at).astimezone(zone) for at in islice(mine, _IN_A_DAY)]
        rest = sum(1 for _ in islice(mine, _COUNTED))
        more = f"{rest:,}{'+' if rest == _COUNTED else ''}" if rest else ""
        days.append(Day(begin, first, more, _change(begin, end)))
    return days


def _due(record: ScheduleRecord) -> Callable[[int], Iterator[int]]:
    """Return a function that returns the instants after a given one at which a schedule fires."""
    next_at = record.next_at
    if next_at is None or record.state == "removed":
        return lambda _after: iter(())
    trigger, rules = read_trigger(record.trigger), read_rules(record.rules)
    return lambda after: instants(trigger, rules, max(after, next_at - 1))


def _change(begin: datetime, end: datetime) -> str:
    before, after = begin.utcoffset(), end.utcoffset()
    if before is None or after is None or before == after:
        return ""
    minutes = int(abs((after - before).total_seconds()) // 60)
    way = "forward" if after > before else "back"
    return f"clocks go {way} by {minutes} min"

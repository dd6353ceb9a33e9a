"""Cron expressions in a time zone, as a set of instants. Times are UTC microseconds.

`cronsim` computes the local times that an expression names. This module maps them to instants,
also where the zone's clock changes, as at the start and end of daylight saving time (DST). An
expression with fixed hours and minutes means a time of day: it fires once per such time. If the
clock skips the time, it fires at the first valid moment after the gap. If the clock repeats the
time, it fires at the first of the two. An expression with a star in its minutes or hours means
elapsed time: skipped times do not fire, and repeated times fire twice.
"""

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import product, takewhile
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from duly.errors import BadSchedule
from duly.limits import CRON_CHARACTERS

_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
SecondsField = Literal["first", "last"]
"""Which of six fields holds the seconds: the first in duly's own form, the last in croniter's."""

_WITH_SECONDS = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
_A_DAY = timedelta(hours=26)
"""Longer than any clock is set back."""
_STEADY_SPANS = (timedelta(days=5), timedelta(hours=1))
"""If a zone has the same offset at both ends of such a span, it has that offset throughout.

In every zone there are at least seven days between two changes.
"""


class Cron:
    """One expression in one zone."""

    def __init__(
        self, expression: str, zone: str, *, seconds_field: SecondsField | None = None
    ) -> None:
        """Parse the expression and the zone, or raise BadSchedule.

        An expression of six fields is refused without `seconds_field`, because the same text means
        "every 20 seconds" to some programs and "every second on Sundays" to others.
        """
        if not isinstance(expression, str) or len(expression) > CRON_CHARACTERS:
            raise BadSchedule(
                f"a cron expression must be a string of at most {CRON_CHARACTERS} characters"
            )
        self.expression = _seconds_first(expression, seconds_field)
        self.zone = zone
        self._fields = _NAMED.get(expression.strip().lower(), self.expression)
        self.tz = zone_of(zone)
        parts = self._fields.split()
        minute, hour = parts[-5:-3] if len(parts) in {5, _WITH_SECONDS} else ("*", "*")
        self._time_fields = (parts[0] if len(parts) == _WITH_SECONDS else "0", minute, hour)
        self._day_fields = parts[-3:]
        self._means_time_of_day = "*" not in minute and "*" not in hour
        try:
            next(CronSim(self._fields, datetime(2000, 1, 1)))  # noqa: DTZ001 - a local time
        except CronSimError as error:
            raise BadSchedule(
                f"the cron expression {expression!r} is not valid: {error}; write five fields, "
                "minute (0-59) hour (0-23) day (1-31) month (1-12) weekday (0-7), six fields with "
                f"seconds and seconds_field=, or one of {', '.join(_NAMED)}"
            ) from None
        except StopIteration:
            raise BadSchedule(f"the cron expression {expression!r} never comes due") from None

    @property
    def with_seconds_last(self) -> str:
        """The expression with its seconds, if it has any, in the last of six fields."""
        parts = self.expression.split()
        is_longer = len(parts) == _WITH_SECONDS
        return " ".join([*parts[1:], parts[0]]) if is_longer else self.expression

    def next_after(self, instant: int) -> int | None:
        """Return the first instant that is strictly later, if there is one within fifty years."""
        try:
            after = _EPOCH + instant * _MICROSECOND
            found = self._by_day(after) if self._means_time_of_day else self._by_time(after)
        except OverflowError:
            return None  # Beyond the last year that datetime supports.
        return None if found is None else (found - _EPOCH) // _MICROSECOND

    def after(self, instant: int) -> Iterator[int]:
        """Return all instants that are strictly later, in order.

        Much faster than repeated calls of `next_after`. While the zone's clock does not change, an
        expression names the same times on each of its days.
        """
        found = self.next_after(instant)
        while found is not None:
            yield found
            last = found
            for last in self._before_change(found):
                yield last
            found = self.next_after(last)

    def _before_change(self, instant: int) -> Iterator[int]:
        """Return the following instants while the zone's offset is known to stay the same."""
        moment = _EPOCH + instant * _MICROSECOND
        offset = _offset(moment, self.tz)
        end = instant + self._steady_span(moment, offset) // _MICROSECOND
        origin = _EPOCH.replace(tzinfo=None) + offset
        times = _times_of_day(*self._time_fields)
        # OverflowError means beyond the last year that datetime supports.
        with contextlib.suppress(OverflowError):
            for day in self._days((moment + offset).replace(tzinfo=None)):
                midnight = (day - origin) // _MICROSECOND
                if midnight >= end:
                    return
                yield from _between(times, midnight, instant, end)

    def _steady_span(self, moment: datetime, offset: timedelta) -> timedelta:
        with contextlib.suppress(OverflowError):
            for span in _STEADY_SPANS:
                if _offset(moment + span, self.tz) == offset:
                    return span
        return timedelta()

    def _days(self, local: datetime) -> Iterator[datetime]:
        """Return the days that the expression names, starting with the day of a local time."""
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        return CronSim(" ".join(("0", "0", *self._day_fields)), midnight - _SECOND)

    def in_words(self) -> str:
        """Return a description in English."""
        return CronSim(self._fields, datetime(2000, 1, 1)).explain()  # noqa: DTZ001 - a local time

    def _by_day(self, after: datetime) -> datetime | None:
        for local in self._local_times(_local(after, self.tz)):
            found = _first_instant(local, self.tz)
            if found > after:
                return found
        return None

    def _by_time(self, after: datetime) -> datetime | None:
        here = after.astimezone(self.tz)
        found = None
        for local in self._local_times(here.replace(tzinfo=None, fold=0)):
            later = [moment for moment in _instants(local, self.tz) if moment > after]
            if later:
                found = later[0]
                break
        if here.fold == 0 and _is_repeated(here):
            # The clock will later be set back to before this moment, so earlier local times repeat.
            back = _change_after(after, self.tz)
            for local in self._local_times(_local(back, self.tz) - _SECOND):
                again = _instants(local, self.tz)[-1]
                return again if found is None else min(found, again)
        return found

    def _local_times(self, after: datetime) -> Iterator[datetime]:
        """Return the local times later than `after` that the expression names, in order."""
        return CronSim(self._fields, after)


def _seconds_first(expression: str, seconds_field: SecondsField | None) -> str:
    """Return an expression whose seconds, if it has any, are the first of its six fields."""
    if seconds_field not in {None, *get_args(SecondsField)}:
        raise BadSchedule(f'seconds_field must be "first" or "last", not {seconds_field!r}')
    parts = expression.split()
    if len(parts) != _WITH_SECONDS or seconds_field == "first":
        return expression
    if seconds_field is None:
        raise BadSchedule(
            f"the cron expression {expression!r} has six fields; name the field of the seconds: "
            'seconds_field="first", or "last" as in croniter'
        )
    return " ".join([parts[-1], *parts[:-1]])


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """Return a time zone by its IANA name, or raise BadSchedule."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError, AttributeError):
        raise BadSchedule(
            f"there is no time zone {name!r}; use an IANA name such as Europe/Paris, and install "
            f"the package tzdata if this machine has none"
        ) from None


@lru_cache(maxsize=64)
def _times_of_day(second: str, minute: str, hour: str) -> Sequence[int]:
    """Return the times of day that these fields name, in order."""
    hours = _named(f"0 {hour} * * *", timedelta(days=1))
    minutes = _named(f"{minute} * * * *", timedelta(hours=1))
    seconds = _named(f"{second} * * * * *", timedelta(minutes=1))
    return tuple(map(sum, product(hours, minutes, seconds)))


def _named(expression: str, span: timedelta) -> list[int]:
    day = datetime(2000, 1, 1)  # noqa: DTZ001 - a local time
    named = takewhile((day + span).__gt__, CronSim(expression, day - _SECOND))
    return [(time - day) // _MICROSECOND for time in named]


def _between(times: Sequence[int], midnight: int, after: int, end: int) -> Iterator[int]:
    first, last = bisect_right(times, after - midnight), bisect_left(times, end - midnight)
    return map(midnight.__add__, times[first:last])


def _offset(moment: datetime, tz: tzinfo) -> timedelta:
    return moment.astimezone(tz).utcoffset() or timedelta()


def _local(moment: datetime, tz: tzinfo) -> datetime:
    return moment.astimezone(tz).replace(tzinfo=None, fold=0)


def _instants(local: datetime, tz: tzinfo) -> list[datetime]:
    """Return the instants at which a clock in the zone shows this time: none, one or two."""
    shown = {local.replace(tzinfo=tz, fold=fold).astimezone(UTC) for fold in (0, 1)}
    return sorted(moment for moment in shown if _local(moment, tz) == local)


def _first_instant(local: datetime, tz: tzinfo) -> datetime:
    """Return when a clock first shows this time, or when it skips the time."""
    shown = _instants(local, tz)
    if shown:
        return shown[0]
    # A skipped time, read with the offset after the gap, is before the gap, and vice versa.
    before, behind = sorted(local.replace(tzinfo=tz, fold=f).astimezone(UTC) for f in (0, 1))
    return _change_between(before, behind, tz)


def _is_repeated(here: datetime) -> bool:
    return here.replace(fold=1).utcoffset() != here.utcoffset()


def _change_after(moment: datetime, tz: tzinfo) -> datetime:
    return _change_between(moment, moment + _A_DAY, tz)


def _change_between(before: datetime, behind: datetime, tz: tzinfo) -> datetime:
    """Return the second at which the zone's offset changes."""
    offset = before.astimezone(tz).utcoffset()
    same, other = int(before.timestamp()), int(behind.timestamp()) + 1
    while other - same > 1:
        middle = (same + other) // 2
        if datetime.fromtimestamp(middle, tz).utcoffset() == offset:
            same = middle
        else:
            other = middle
    return datetime.fromtimestamp(other, UTC)

"""Cron expressions in a time zone, as a set of instants. Times are UTC microseconds.

`cronsim` says which local times an expression names; which instants those are, over the changes of
a zone's clock, is decided here. An expression that names hours and minutes means the time of day:
it fires once for each, at the first valid moment where the clock skips it, and at the first of the
two where the clock repeats it. One with a star in its minutes or hours means the passing of time:
what the clock skips does not happen, and what it repeats happens twice.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
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
_WITH_SECONDS = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
_A_DAY = timedelta(hours=26)
"""Longer than any clock is set back."""


class Cron:
    """One expression in one zone."""

    def __init__(self, expression: str, zone: str) -> None:
        """Read both, or say what is wrong with them."""
        if not isinstance(expression, str) or len(expression) > CRON_CHARACTERS:
            raise BadSchedule(
                f"a cron expression must be a text of at most {CRON_CHARACTERS} characters"
            )
        self.expression = expression
        self.zone = zone
        self._fields = _NAMED.get(expression.strip().lower(), expression)
        self.tz = zone_of(zone)
        parts = self._fields.split()
        minute, hour = parts[-5:-3] if len(parts) in {5, _WITH_SECONDS} else ("*", "*")
        self._means_time_of_day = "*" not in minute and "*" not in hour
        try:
            next(CronSim(self._fields, datetime(2000, 1, 1)))  # noqa: DTZ001 - a local time
        except CronSimError as error:
            raise BadSchedule(
                f"the cron expression {expression!r} names no time: {error}; it has five fields, "
                f"minute (0-59) hour (0-23) day (1-31) month (1-12) weekday (0-7), or six with "
                f"seconds in front, or is one of {', '.join(_NAMED)}"
            ) from None
        except StopIteration:
            raise BadSchedule(f"the cron expression {expression!r} never comes due") from None

    def next_after(self, instant: int) -> int | None:
        """Return the first instant that is strictly later, if there is one within fifty years."""
        try:
            after = _EPOCH + instant * _MICROSECOND
            found = self._by_day(after) if self._means_time_of_day else self._by_time(after)
        except OverflowError:
            return None  # Beyond the last year that there is.
        return None if found is None else (found - _EPOCH) // _MICROSECOND

    def in_words(self) -> str:
        """Say it in English."""
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
            # The clock will go back behind this moment, to times that it has passed already.
            back = _change_after(after, self.tz)
            for local in self._local_times(_local(back, self.tz) - _SECOND):
                again = _instants(local, self.tz)[-1]
                return again if found is None else min(found, again)
        return found

    def _local_times(self, after: datetime) -> Iterator[datetime]:
        """Return the local times that the expression names behind one, in their order."""
        return CronSim(self._fields, after)


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """Return a time zone by its IANA name, or say that there is none."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError, AttributeError):
        raise BadSchedule(
            f"there is no time zone {name!r}; use an IANA name such as Europe/Paris, and install "
            f"the package tzdata if this machine has none"
        ) from None


def _local(moment: datetime, tz: tzinfo) -> datetime:
    return moment.astimezone(tz).replace(tzinfo=None, fold=0)


def _instants(local: datetime, tz: tzinfo) -> list[datetime]:
    """Return when a clock in the zone shows this: never, once or twice."""
    shown = {local.replace(tzinfo=tz, fold=fold).astimezone(UTC) for fold in (0, 1)}
    return sorted(moment for moment in shown if _local(moment, tz) == local)


def _first_instant(local: datetime, tz: tzinfo) -> datetime:
    """Return when a clock shows this for the first time, or leaps over it."""
    shown = _instants(local, tz)
    if shown:
        return shown[0]
    # Read with the offset from behind the leap it lies before the leap, and the other way round.
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

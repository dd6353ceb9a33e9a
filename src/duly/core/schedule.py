"""Computes due instants of schedules and their outcomes. Times are UTC microseconds.

A plan is a pure function of the stored schedule, the store's time, and whether its last run is
live. The first worker to plan a schedule writes the plan. Other workers then see a later cursor.
"""

import json
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import count, islice, pairwise, takewhile
from typing import Literal, NamedTuple, get_args

from duly.core.cron import Cron
from duly.core.record import ScheduleRecord
from duly.core.time_text import interval_words
from duly.errors import BadSchedule
from duly.limits import CATCH_UP, INTERVAL_SECONDS, PLAN_INSTANTS, SINGLE_FIRINGS

SECOND = 1_000_000
ON_TIME = 60 * SECOND
"""A firing that is later than this was missed. It is caught up if the policy allows it."""
_DAY = 86_400 * SECOND
"""No time zone change moves an instant by more than this."""
_RECHECK = SECOND // 5
"""The interval at which a firing that waits for the last run is checked again."""
UNANCHORED = -1
"""The anchor of an interval that counts from the time its schedule is added."""

Misfire = Literal["latest", "all", "skip"]
Overlap = Literal["skip", "queue", "allow"]


class IntervalTrigger(NamedTuple):
    """A fixed interval in microseconds of elapsed time, counted from `anchor`."""

    interval: int
    anchor: int

    def next_after(self, instant: int) -> int | None:
        """Return the first instant that is strictly later."""
        passed = max(0, (instant - self.anchor) // self.interval)
        return self.anchor + (passed + 1) * self.interval

    def after(self, instant: int) -> Iterator[int]:
        """Return all instants that are strictly later, in order."""
        passed = max(0, (instant - self.anchor) // self.interval)
        return count(self.anchor + (passed + 1) * self.interval, self.interval)

    def in_words(self) -> str:
        """Return a description in English."""
        return f"Every {interval_words(self.interval)}"


class DateTrigger(NamedTuple):
    """A single instant."""

    instant: int

    def next_after(self, instant: int) -> int | None:
        """Return the instant if it is strictly later."""
        return self.instant if self.instant > instant else None

    def after(self, instant: int) -> Iterator[int]:
        """Return the instant if it is strictly later."""
        return iter((self.instant,) if self.instant > instant else ())

    def in_words(self) -> str:
        """Return a description in English."""
        return "Once"


Trigger = Cron | IntervalTrigger | DateTrigger


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for missed instants, and for those that come due while the last run is live."""

    misfire: Misfire = "latest"
    grace: int | None = None
    """How late an instant may be and still fire. None means no bound."""
    max_catch_up: int = 100
    overlap: Overlap = "skip"
    jitter: int = 0
    start: int | None = None
    end: int | None = None
    pause_after: int | None = None
    """The number of consecutive failed runs after which the schedule pauses itself."""

    def __post_init__(self) -> None:
        """Raise BadSchedule for values that make no sense."""
        _check_word("misfire", self.misfire, get_args(Misfire))
        _check_word("overlap", self.overlap, get_args(Overlap))
        _check_count("max_catch_up", self.max_catch_up)
        if self.pause_after is not None:
            _check_count("pause_after", self.pause_after)
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise BadSchedule("the start of a schedule must be before its end")

    @property
    def most_fired(self) -> int:
        """The maximum number of missed instants that may fire. The newest ones fire."""
        return self.max_catch_up if self.misfire == "all" else 1

    @property
    def max_lateness(self) -> int | None:
        """How late an instant may be, by its grace or because missed instants are skipped."""
        return ON_TIME if self.misfire == "skip" and self.grace is None else self.grace


FiringOutcome = Literal["run", "caught_up", "waiting", "skipped"]


class PlannedFiring(NamedTuple):
    """The outcome of one due instant, or of several consecutive ones skipped for one reason."""

    instant: int
    outcome: FiringOutcome
    reason: str | None = None
    last_instant: int = 0
    """The last of several consecutive instants. 0 for a single one."""
    row: int = 1


class Plan(NamedTuple):
    """The result of planning one schedule."""

    firings: list[PlannedFiring]
    next_at: int | None
    """The cursor. All earlier instants are accounted for."""
    look_at: int | None
    release: bool = False
    """True if the oldest firing that waits for the last run may run now."""
    pause: str | None = None
    """Why the schedule pauses itself."""
    broken: str | None = None
    """Why the schedule could not be planned."""


class PreviousRuns(NamedTuple):
    """The facts about earlier runs that a plan depends on."""

    is_busy: bool
    """True if the run of an earlier firing is live."""
    has_failed: bool
    """True if the last runs failed as often in a row as `pause_after` allows."""


def plan(
    schedule: ScheduleRecord, now: int, standing: PreviousRuns, *, room: int = CATCH_UP
) -> Plan:
    """Decide the outcome of the due instants, with at most `room` new runs."""
    trigger, rules = read_trigger(schedule.trigger), read_rules(schedule.rules)
    is_paused = schedule.state == "paused"
    pause = None
    if standing.has_failed and not is_paused:
        is_paused, pause = True, f"its last {rules.pause_after} runs failed"
    keeps = 0 if is_paused else rules.most_fired
    begin = _begin(trigger, rules, schedule.next_at)
    due, is_whole = _due(schedule, begin, now, PLAN_INSTANTS + keeps)
    # If more instants are due than were read, none of these is among the newest that may fire.
    passed = due[: max(0, len(due) - keeps)]
    kept = due[len(passed) :][:room] if is_whole else ()
    firings = _skipped(passed, "paused" if is_paused else "missed", is_whole=is_whole)
    firings += _fire(schedule, rules, kept, now, standing)
    last = kept[-1] if kept else passed[-1] if passed else None
    next_at = begin if last is None else next_instant(trigger, rules, last)
    release = schedule.waiting > 0 and not standing.is_busy and not is_paused
    waiting = schedule.waiting + sum(f.outcome == "waiting" for f in firings) - release
    look_at = None if next_at is None else next_at + _offset(schedule.name, next_at, rules.jitter)
    if waiting and not is_paused:
        look_at = now + _RECHECK if look_at is None else min(look_at, now + _RECHECK)
    return Plan(firings, next_at, look_at, release, pause)


def first_instant(
    name: str, trigger: Trigger, rules: Rules, now: int
) -> tuple[int | None, int | None]:
    """Return the first instant of a new schedule, and when to check the schedule."""
    # A single instant fires even if it has already passed when its schedule is added.
    next_at = (
        trigger.instant if isinstance(trigger, DateTrigger) else next_instant(trigger, rules, now)
    )
    if next_at is None:
        return None, None
    return next_at, next_at + _offset(name, next_at, rules.jitter)


def next_instant(trigger: Trigger, rules: Rules, instant: int) -> int | None:
    """Return the next instant within the schedule's window."""
    return next(instants(trigger, rules, instant), None)


def instants(trigger: Trigger, rules: Rules, after: int) -> Iterator[int]:
    """Return the due instants later than `after`, in order."""
    if rules.start is not None:
        after = max(after, rules.start - 1)
    found = trigger.after(after)
    return found if rules.end is None else takewhile(rules.end.__ge__, found)


def row_of(trigger: Trigger, begin: int, last: int, *, count: int) -> Sequence[int]:
    """Return the instants of one row of firings. Empty if a different trigger made the row."""
    found: Sequence[int]
    if isinstance(trigger, IntervalTrigger):
        found = range(begin, last + 1, trigger.interval)
    else:
        found = list(islice(instants(trigger, Rules(), begin - 1), count))
    is_begun = next_instant(trigger, Rules(), begin - 1) == begin
    return found if is_begun and len(found) == count and found[-1] == last else ()


def split_row(row: Sequence[int], out: Iterable[int]) -> list[Sequence[int]]:
    """Return the parts of a row of instants that remain after some are taken out."""
    pieces, begin = [], 0
    for instant in sorted(out):
        place = bisect_left(row, instant)
        if place < len(row) and row[place] == instant:
            pieces.append(row[begin:place])
            begin = place + 1
    return [piece for piece in (*pieces, row[begin:]) if piece]


def _begin(trigger: Trigger, rules: Rules, cursor: int | None) -> int | None:
    """Return the first instant that is not accounted for.

    Normally this is the cursor. If the rules of its time zone changed after the cursor was stored,
    return the instant nearest to the cursor, before or after it. Keeping the old cursor would leave
    a time that is no longer an instant due forever. Always taking the next instant would omit an
    instant that moved to before the cursor.
    """
    if cursor is None or not isinstance(trigger, Cron):
        return cursor
    later = trigger.next_after(cursor - 1)
    if later == cursor:
        return cursor
    apart = _DAY if later is None else min(later - cursor, _DAY)
    earlier = takewhile(cursor.__gt__, instants(trigger, rules, cursor - apart - 1))
    nearest = deque(earlier, maxlen=1)
    return nearest[0] if nearest else next_instant(trigger, rules, cursor)


def _due(
    schedule: ScheduleRecord, begin: int | None, now: int, limit: int
) -> tuple[Sequence[int], bool]:
    """Return the due instants, oldest first, and whether these are all of them."""
    trigger, rules = read_trigger(schedule.trigger), read_rules(schedule.rules)

    def is_due(instant: int) -> bool:
        return instant + _offset(schedule.name, instant, rules.jitter) <= now

    if begin is None:
        return (), True
    if isinstance(trigger, IntervalTrigger):
        # A range of any length needs no iteration.
        until = now if rules.end is None else min(now, rules.end)
        every = range(begin, until + 1, trigger.interval)
        return (every if not every or is_due(every[-1]) else every[:-1]), True
    due = list(islice(takewhile(is_due, instants(trigger, rules, begin - 1)), limit))
    return due, len(due) < limit


def _fire(
    schedule: ScheduleRecord, rules: Rules, kept: Sequence[int], now: int, standing: PreviousRuns
) -> list[PlannedFiring]:
    firings = []
    is_busy = standing.is_busy or schedule.waiting > 0
    for instant in kept:
        late = now - instant - _offset(schedule.name, instant, rules.jitter)
        if rules.max_lateness is not None and late > rules.max_lateness:
            firings.append(PlannedFiring(instant, "skipped", "missed"))
        elif not is_busy or rules.overlap == "allow":
            firings.append(PlannedFiring(instant, "run" if late <= ON_TIME else "caught_up"))
            is_busy = True
        elif rules.overlap == "queue" and schedule.waiting + len(firings) < CATCH_UP:
            firings.append(PlannedFiring(instant, "waiting", "overlap"))
        else:
            firings.append(PlannedFiring(instant, "skipped", "overlap"))
    return firings


def _skipped(due: Sequence[int], reason: str, *, is_whole: bool) -> list[PlannedFiring]:
    """Return skipped firings: the older instants as one row, the newest ones one by one."""
    firings = []
    row = len(due) - SINGLE_FIRINGS * is_whole
    if row > 1:
        firings.append(PlannedFiring(due[0], "skipped", reason, due[row - 1], row))
        due = due[row:]
    return firings + [PlannedFiring(instant, "skipped", reason) for instant in due]


def _offset(name: str, instant: int, jitter: int) -> int:
    """Return the delay of an instant due to jitter. It is the same in every process."""
    if jitter == 0:
        return 0
    import hashlib  # noqa: PLC0415 - loads OpenSSL, which few programs need

    digest = hashlib.blake2b(f"{name}\n{instant}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % jitter


# -- stored form --


def trigger_text(trigger: Trigger) -> str:
    """Return the stored form of a trigger."""
    data: dict[str, object]
    if isinstance(trigger, Cron):
        data = {"cron": trigger.expression, "tz": trigger.zone}
    elif isinstance(trigger, IntervalTrigger):
        data = {"every": trigger.interval, "anchor": trigger.anchor}
    else:
        data = {"at": trigger.instant}
    return json.dumps(data)


@lru_cache(maxsize=10_000)
def read_trigger(text: str) -> Trigger:
    """Return the trigger of a stored text."""
    data = json.loads(text)
    if "cron" in data:
        return Cron(data["cron"], data["tz"], seconds_field="first")
    return (
        DateTrigger(data["at"]) if "at" in data else IntervalTrigger(data["every"], data["anchor"])
    )


def rules_text(rules: Rules) -> str:
    """Return the stored form of rules."""
    return json.dumps(asdict(rules))


@lru_cache(maxsize=1000)
def read_rules(text: str) -> Rules:
    """Return the rules of a stored text."""
    # A newer version of duly may have stored additional rules.
    known = Rules.__dataclass_fields__
    return Rules(**{name: value for name, value in json.loads(text).items() if name in known})


def check_jitter(trigger: Trigger, jitter: int) -> None:
    """Raise BadSchedule if the jitter can delay an instant beyond the next one."""
    due = list(islice(instants(trigger, Rules(), 0), 20)) if jitter else []
    if any(jitter >= later - earlier for earlier, later in pairwise(due)):
        raise BadSchedule("the jitter must be shorter than the time between two instants")


def anchored(text: str, now: int) -> str:
    """Return a stored trigger. An interval without an anchor is anchored at `now`."""
    trigger = read_trigger(text)
    if isinstance(trigger, IntervalTrigger) and trigger.anchor == UNANCHORED:
        return trigger_text(IntervalTrigger(trigger.interval, now))
    return text


def is_same_trigger(wanted: str, known: str) -> bool:
    """Return whether a wanted trigger equals the stored one, which may have been anchored since."""
    new = read_trigger(wanted)
    try:
        old = read_trigger(known)
    except BadSchedule:
        return False  # It names a time zone that this machine does not have.
    if (
        isinstance(new, IntervalTrigger)
        and isinstance(old, IntervalTrigger)
        and new.anchor == UNANCHORED
    ):
        return new.interval == old.interval
    return wanted == known


def check_interval(seconds: float) -> int:
    """Return an interval in microseconds, or raise BadSchedule."""
    if not 1 <= seconds <= INTERVAL_SECONDS:
        raise BadSchedule(
            f"the interval of a schedule must be from 1 second to {INTERVAL_SECONDS}, "
            f"not {seconds:g}; use a loop in one task for anything faster"
        )
    return round(seconds * SECOND)


def _check_count(what: str, count: object) -> None:
    if type(count) is not int or not 1 <= count <= CATCH_UP:
        raise BadSchedule(f"{what} must be a whole number from 1 to {CATCH_UP}, not {count!r}")


def _check_word(what: str, word: object, words: tuple[str, ...]) -> None:
    if word not in words:
        raise BadSchedule(f"{what} must be one of {', '.join(words)}, not {word!r}")

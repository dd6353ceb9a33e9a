"""When a schedule comes due, and what becomes of each due instant. Times are UTC microseconds.

A plan is a pure function of the schedule as stored, the store's time and whether its last run is
still live. Whoever looks first writes it down; everybody else finds the cursor moved.
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
from duly.errors import BadSchedule
from duly.limits import CATCH_UP, INTERVAL_SECONDS, PLAN_INSTANTS, SINGLE_FIRINGS

SECOND = 1_000_000
ON_TIME = 60 * SECOND
"""What fires later than this was missed, and is caught up if the policy says so."""
_DAY = 86_400 * SECOND
"""No zone's rules move an instant by more."""
_RECHECK = SECOND // 5
"""How soon a firing that waits for the last run is looked at again."""
UNANCHORED = -1
"""The anchor of an interval that counts from when its schedule is added."""

Misfire = Literal["latest", "all", "skip"]
Overlap = Literal["skip", "queue", "allow"]


class IntervalTrigger(NamedTuple):
    """Every so many microseconds of elapsed time, counted from `anchor`."""

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
        """Say it in English."""
        return f"Every {_duration(self.interval)}"


class DateTrigger(NamedTuple):
    """Once."""

    instant: int

    def next_after(self, instant: int) -> int | None:
        """Return the instant, if it is strictly later."""
        return self.instant if self.instant > instant else None

    def after(self, instant: int) -> Iterator[int]:
        """Return the instant, if it is strictly later."""
        return iter((self.instant,) if self.instant > instant else ())

    def in_words(self) -> str:
        """Say it in English."""
        return "Once"


Trigger = Cron | IntervalTrigger | DateTrigger


@dataclass(frozen=True, slots=True)
class Rules:
    """What is done about instants that were missed, or that find the last run still live."""

    misfire: Misfire = "latest"
    grace: int | None = None
    """How late an instant may be and still fire; without end if None."""
    max_catch_up: int = 100
    overlap: Overlap = "skip"
    jitter: int = 0
    start: int | None = None
    end: int | None = None
    pause_after: int | None = None
    """Failed runs in a row after which the schedule pauses itself."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        _check_word("misfire", self.misfire, get_args(Misfire))
        _check_word("overlap", self.overlap, get_args(Overlap))
        _check_count("max_catch_up", self.max_catch_up)
        if self.pause_after is not None:
            _check_count("pause_after", self.pause_after)
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise BadSchedule("the start of a schedule must be before its end")

    @property
    def most_fired(self) -> int:
        """How many of the instants that were missed may fire, the newest first."""
        return self.max_catch_up if self.misfire == "all" else 1

    @property
    def max_lateness(self) -> int | None:
        """How late an instant may be, by grace or because missed ones are skipped."""
        return ON_TIME if self.misfire == "skip" and self.grace is None else self.grace


FiringOutcome = Literal["run", "caught_up", "waiting", "skipped"]


class PlannedFiring(NamedTuple):
    """What becomes of a due instant, or of a row of them that are skipped for one reason."""

    instant: int
    outcome: FiringOutcome
    reason: str | None = None
    last_instant: int = 0
    """Of a row of them; otherwise 0."""
    row: int = 1


class Plan(NamedTuple):
    """What a look at a schedule leads to."""

    firings: list[PlannedFiring]
    next_at: int | None
    """The cursor: every instant before it is accounted for."""
    look_at: int | None
    release: bool = False
    """Whether the oldest firing that waits for the last run may run now."""
    pause: str | None = None
    """Why the schedule pauses itself."""
    broken: str | None = None
    """Why it could not be planned."""


class PreviousRuns(NamedTuple):
    """What a plan must know beside the schedule."""

    is_busy: bool
    """Whether the run of an earlier firing is live."""
    has_failed: bool
    """Whether as many of the last runs failed as its rules allow."""


def plan(
    schedule: ScheduleRecord, now: int, standing: PreviousRuns, *, room: int = CATCH_UP
) -> Plan:
    """Decide about every instant that is due, as far as one look goes: with up to `room` runs."""
    trigger, rules = read_trigger(schedule.trigger), read_rules(schedule.rules)
    is_paused = schedule.state == "paused"
    pause = None
    if standing.has_failed and not is_paused:
        is_paused, pause = True, f"its last {rules.pause_after} runs failed"
    keeps = 0 if is_paused else rules.most_fired
    begin = _begin(trigger, rules, schedule.next_at)
    due, is_whole = _due(schedule, begin, now, PLAN_INSTANTS + keeps)
    # If there are more, all of these have as many successors as may be kept.
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
    """Return the first instant of a new schedule, and when to look at it."""
    # One that is to happen once happens, however late it is asked for.
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
    """Return the due instants that are later than one, in order."""
    if rules.start is not None:
        after = max(after, rules.start - 1)
    found = trigger.after(after)
    return found if rules.end is None else takewhile(rules.end.__ge__, found)


def row_of(trigger: Trigger, begin: int, last: int, *, count: int) -> Sequence[int]:
    """Return the instants that a row of the ledger counts; none if another trigger made it."""
    found: Sequence[int]
    if isinstance(trigger, IntervalTrigger):
        found = range(begin, last + 1, trigger.interval)
    else:
        found = list(islice(instants(trigger, Rules(), begin - 1), count))
    is_begun = next_instant(trigger, Rules(), begin - 1) == begin
    return found if is_begun and len(found) == count and found[-1] == last else ()


def split_row(row: Sequence[int], out: Iterable[int]) -> list[Sequence[int]]:
    """Return what is left of a row of instants, in pieces, when some are taken out of it."""
    pieces, begin = [], 0
    for instant in sorted(out):
        place = bisect_left(row, instant)
        if place < len(row) and row[place] == instant:
            pieces.append(row[begin:place])
            begin = place + 1
    return [piece for piece in (*pieces, row[begin:]) if piece]


def _begin(trigger: Trigger, rules: Rules, cursor: int | None) -> int | None:
    """Return the first instant that is not accounted for: the cursor, as long as it is one.

    When the rules of its zone have changed since it was stored, it is what the cursor has become:
    the nearest instant, before or behind it. Were the cursor itself taken, what is no instant any
    more would be due for ever; were one behind it, what has moved before it would be left out.
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
    """Return the due instants, oldest first, and whether they are all: fewer than the limit."""
    trigger, rules = read_trigger(schedule.trigger), read_rules(schedule.rules)

    def is_due(instant: int) -> bool:
        return instant + _offset(schedule.name, instant, rules.jitter) <= now

    if begin is None:
        return (), True
    if isinstance(trigger, IntervalTrigger):
        # These can be counted without making each of them, however long nobody looked.
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
    """Skip instants: a long row of them as one, the newest one by one."""
    firings = []
    row = len(due) - SINGLE_FIRINGS * is_whole
    if row > 1:
        firings.append(PlannedFiring(due[0], "skipped", reason, due[row - 1], row))
        due = due[row:]
    return firings + [PlannedFiring(instant, "skipped", reason) for instant in due]


def _offset(name: str, instant: int, jitter: int) -> int:
    """Return by how much an instant is put off: the same for whoever asks."""
    if jitter == 0:
        return 0
    import hashlib  # noqa: PLC0415 - loads OpenSSL, which few need

    digest = hashlib.blake2b(f"{name}\n{instant}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % jitter


# -- as stored --


def trigger_text(trigger: Trigger) -> str:
    """Return a trigger as it is stored."""
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
    """Return a stored trigger."""
    data = json.loads(text)
    if "cron" in data:
        return Cron(data["cron"], data["tz"], seconds_field="first")
    return (
        DateTrigger(data["at"]) if "at" in data else IntervalTrigger(data["every"], data["anchor"])
    )


def rules_text(rules: Rules) -> str:
    """Return rules as they are stored."""
    return json.dumps(asdict(rules))


@lru_cache(maxsize=1000)
def read_rules(text: str) -> Rules:
    """Return stored rules."""
    # Newer code may have more of them.
    known = Rules.__dataclass_fields__
    return Rules(**{name: value for name, value in json.loads(text).items() if name in known})


def check_jitter(trigger: Trigger, jitter: int) -> None:
    """Refuse to put instants off to beyond the next one."""
    due = list(islice(instants(trigger, Rules(), 0), 20)) if jitter else []
    if any(jitter >= later - earlier for earlier, later in pairwise(due)):
        raise BadSchedule("the jitter must be shorter than the time between two instants")


def anchored(text: str, now: int) -> str:
    """Return a stored trigger whose interval counts from now if nothing else was said."""
    trigger = read_trigger(text)
    if isinstance(trigger, IntervalTrigger) and trigger.anchor == UNANCHORED:
        return trigger_text(IntervalTrigger(trigger.interval, now))
    return text


def is_same_trigger(wanted: str, known: str) -> bool:
    """Say whether a trigger asks for what is known, which may have been anchored meanwhile."""
    new = read_trigger(wanted)
    try:
        old = read_trigger(known)
    except BadSchedule:
        return False  # Of a zone that this machine does not know.
    if (
        isinstance(new, IntervalTrigger)
        and isinstance(old, IntervalTrigger)
        and new.anchor == UNANCHORED
    ):
        return new.interval == old.interval
    return wanted == known


def check_interval(seconds: float) -> int:
    """Return an interval in microseconds, or say why it cannot be one."""
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


def _duration(micros: int) -> str:
    seconds = micros / SECOND
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return unit if count == 1 else f"{count} {unit}s"
    return "second" if seconds == 1 else f"{seconds:g} seconds"

"""Computes the positions of bars in charts. The templates draw them as SVG, without scripts.

With scripts, the browser redraws the overview's chart from the table below it (`chart.js`).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from duly.clock import MICROSECONDS
from duly.core.instants import moment
from duly.core.record import AuditEntry, FinishedRunsByTime
from duly.core.states import DEAD
from duly.core.time_text import duration, exact_utc_text

_MINUTE = 60 * MICROSECONDS
_HOUR = 60 * _MINUTE

WINDOWS = {"1h": (_HOUR, _MINUTE), "24h": (24 * _HOUR, _HOUR), "7d": (168 * _HOUR, 6 * _HOUR)}
"""The time span of a chart, and the time span of one bar."""
WIDTH, HEIGHT = 960, 160


def window_start(window: str, now: int) -> int:
    """Return the start of the first bar.

    Counts are added up by the minute, and after two hours by the hour. From the start of a bar, a
    window has all of such a sum or nothing of it.
    """
    whole, step = WINDOWS[window]
    return (now - whole) // step * step + step


class ChartBar(NamedTuple):
    """The runs that ended in one interval."""

    x: float
    width: float
    good: float
    bad: float
    other: float
    """The heights, from the bottom: failed, others, succeeded."""
    wait_y: float | None
    retried_y: float | None
    title: str
    ends: "EndCounts"


class EndCounts(NamedTuple):
    """The numbers of runs that ended in one interval, for the table."""

    at: int
    """The start of the interval."""
    succeeded: int
    failed: int
    cancelled: int
    wait: float | None
    """The mean wait in microseconds."""
    retried: int
    """How many failed attempts were followed by another attempt."""


class ChartMark(NamedTuple):
    """A vertical line with a label, for example for a deployment."""

    x: float
    label: str
    title: str
    act: AuditEntry

    @property
    def is_late(self) -> bool:
        """Whether there is no room for the label to the right of the line."""
        return self.x > WIDTH * 0.8


class Chart(NamedTuple):
    """The ended runs over time."""

    bars: list[ChartBar]
    marks: list[ChartMark]
    ticks: list[tuple[float, str]]
    top: int
    """The number of runs at the upper edge."""
    longest_wait: str
    runs: int
    failed: int
    retried: int
    summary: str
    step: int
    """The length of an interval."""


def chart(
    ends: Sequence[FinishedRunsByTime],
    retries: Sequence[FinishedRunsByTime],
    deploys: Iterable[AuditEntry],
    *,
    window: str,
    now: int,
) -> Chart:
    """Return the chart with all positions."""
    step = WINDOWS[window][1]
    first = window_start(window, now)
    starts = range(first, now + 1, step)
    by_start: dict[int, list[FinishedRunsByTime]] = {start: [] for start in starts}
    for row in ends:
        by_start.setdefault(row.at // step * step, []).append(row)
    retried = _by_start(retries, step)
    sums = {start: sum(row.runs for row in by_start[start]) for start in starts}
    top = _round_up(max([*sums.values(), *(retried.get(start, 0) for start in starts)], default=0))
    waits = {start: _mean_wait(by_start[start]) for start in starts}
    longest = max((wait for wait in waits.values() if wait is not None), default=0)
    room = WIDTH / len(starts)
    bars = []
    for place, start in enumerate(starts):
        rows = by_start[start]
        failed = sum(row.runs for row in rows if row.state in DEAD)
        good = sum(row.runs for row in rows if row.state == "succeeded")
        other = sums[start] - failed - good
        wait = waits[start]
        wait_y = None if wait is None or not longest else HEIGHT - wait / longest * (HEIGHT - 12)
        words = f"{good:,} succeeded, {failed:,} failed"
        words += f", {other:,} cancelled" if other else ""
        again = retried.get(start, 0)
        words += f", {again:,} attempts retried" if again else ""
        words += "" if wait is None else f", waited {duration(wait)} on average"
        bars.append(
            ChartBar(
                round(place * room + 1, 2),
                round(room - 2, 2),
                good=round(HEIGHT * good / top, 1),
                bad=round(HEIGHT * failed / top, 1),
                other=round(HEIGHT * other / top, 1),
                wait_y=wait_y,
                retried_y=round(HEIGHT - HEIGHT * again / top, 1) if again else None,
                title=f"{exact_utc_text(start)[:16]} UTC: {words}",
                ends=EndCounts(start, good, failed, other, wait, again),
            )
        )
    whole = step * len(starts)
    marks = [_mark(act, first, whole) for act in deploys if first <= act.at <= now]
    runs = sum(sums.values())
    failed = sum(row.runs for start in starts for row in by_start[start] if row.state in DEAD)
    tries = sum(retried.get(start, 0) for start in starts)
    summary = f"{runs:,} runs ended in the last {window}, {failed:,} of them failed"
    summary += f"; {tries:,} attempts were retried." if tries else "."
    every = max(1, len(starts) // 6)
    label = "%H:%M" if window != "7d" else "%a %d"
    ticks = [
        (round((place + 0.5) * room, 1), moment(start).strftime(label))
        for place, start in enumerate(starts)
        if place % every == every // 2
    ]
    most = duration(longest) if longest else ""
    return Chart(bars, marks, ticks, top, most, runs, failed, tries, summary, step)


def _mark(act: AuditEntry, first: int, whole: int) -> ChartMark:
    return ChartMark(
        round((act.at - first) / whole * WIDTH, 1),
        act.reason[:24],
        f"{exact_utc_text(act.at)}: {act.reason} deployed by {act.actor}",
        act,
    )


def _by_start(rows: Iterable[FinishedRunsByTime], step: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in rows:
        start = row.at // step * step
        found[start] = found.get(start, 0) + row.runs
    return found


def _mean_wait(rows: Sequence[FinishedRunsByTime]) -> float | None:
    runs = sum(row.runs for row in rows)
    return sum(row.delay for row in rows) / runs if runs else None


def _round_up(number: int) -> int:
    """Return the next round number for an axis."""
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power >= number:
                return step * power
        power *= 10

"""Lays out the history of a run as horizontal bars, from its creation to its end. Pure functions.

Templates draw the bars as SVG. Between two attempts a run backs off, sleeps, or waits for an event
or a worker. The records show which.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from duly.core.record import AttemptRecord, RunRecord, StepRecord
from duly.core.states import FINAL
from duly.core.time_text import exact_duration

_ERROR_STEP = re.compile(r"^\(in step \"(.+)\"\)$", re.MULTILINE)
"""The note that a step adds to an exception. The innermost step comes first."""
_BACKED_OFF = frozenset({"raised", "timed_out", "outage"})
_AWAITED = frozenset({"sleep", "wait", "gather"})
_INTERRUPTED, _CALLED_DONE = "interrupted", "marked done by an operator"


class Span(NamedTuple):
    """One bar of a waterfall."""

    kind: str
    """queue, pause, attempt, step, sleep, wait or gather."""
    label: str
    begin: int
    end: int
    is_open: bool = False
    """Whether the bar has not ended yet."""
    note: str = ""

    @property
    def words(self) -> str:
        """The exact duration."""
        took = self.end - self.begin
        return (exact_duration(took) if took else "< 1 ms") + (" so far" if self.is_open else "")

    @property
    def is_bad(self) -> bool:
        """Whether it ended with a failure."""
        return self.note in {*_BACKED_OFF, "lost", "vanished", _INTERRUPTED}


class WaterfallRow(NamedTuple):
    """A bar with its position, in percent of the width."""

    span: Span
    x: float
    width: float


def waterfall(
    run: RunRecord, attempts: Sequence[AttemptRecord], steps: Sequence[StepRecord], now: int
) -> list[WaterfallRow]:
    """Return the bars of a run, from its creation to its end or to now."""
    spans = list(_spans(run, attempts, steps, now))
    if not spans:
        return []
    first = min(span.begin for span in spans)
    last = max(span.end for span in spans)
    scale = 100 / max(last - first, 1)
    rows = []
    for span in spans:
        width = max((span.end - span.begin) * scale, 0.4)
        x = min((span.begin - first) * scale, 100 - width)
        rows.append(WaterfallRow(span, round(x, 3), round(width, 3)))
    return rows


class _AttemptSpan(NamedTuple):
    """An ended or running attempt, with the steps that ended or are running in it."""

    span: Span
    claim_number: int
    generation: int
    outcome: str
    steps: list[Span]


def _spans(
    run: RunRecord, attempts: Sequence[AttemptRecord], steps: Sequence[StepRecord], now: int
) -> Iterator[Span]:
    tries = _attempt_spans(run, attempts, steps, now)
    end = run.finished_at if run.finished_at is not None else now
    if not tries:
        yield from _until_due(run, run.created_at, end, "delayed", is_open=run.state not in FINAL)
        return
    first = tries[0]
    # A run's due time is only known for its last claim.
    if len(tries) == 1 and run.state != "queued":
        yield from _until_due(run, run.created_at, first.span.begin, "delayed")
    else:
        yield Span("queue", "in the queue", run.created_at, first.span.begin)
    for one, following in pairwise(tries):
        yield one.span
        yield from one.steps
        is_last = following is tries[-1]
        yield from _gap(run if is_last else None, one, following.span.begin, following.generation)
    yield tries[-1].span
    yield from tries[-1].steps
    if run.state == "queued":
        yield from _gap(run, tries[-1], max(now, tries[-1].span.end), run.generation, is_open=True)


def _gap(
    run: RunRecord | None, one: _AttemptSpan, until: int, generation: int, *, is_open: bool = False
) -> Iterator[Span]:
    """Yield the bars between two attempts. `run` is passed if its due time applies here."""
    begin = one.span.end
    if generation != one.generation:
        label = "ended, before the retry"
    elif one.outcome in _BACKED_OFF:
        label = "back-off"
    elif one.outcome == "snoozed":
        label = "snoozed"
    elif one.outcome == "suspended":
        # The awaited event has its own bar.
        awaited = [span.end for span in one.steps if span.kind in _AWAITED]
        begin = max([begin, *awaited])
        if begin < until:
            yield from _queued(begin, until, is_open=is_open)
        return
    else:
        yield from _queued(begin, until, is_open=is_open)
        return
    if run is None:
        yield Span("pause", label, begin, until, is_open)
    else:
        yield from _until_due(run, begin, until, label, is_open=is_open)


def _until_due(
    run: RunRecord, begin: int, until: int, label: str, *, is_open: bool = False
) -> Iterator[Span]:
    """Yield the time before an attempt, divided into before and after it was due."""
    due = min(max(run.due_at, begin), until)
    if due > begin:
        yield Span("pause", label, begin, due, is_open and due == until)
    if due < until or due == begin:
        yield from _queued(due, until, is_open=is_open)


def _queued(begin: int, until: int, *, is_open: bool) -> Iterator[Span]:
    yield Span("queue", "in the queue", begin, max(begin, until), is_open)


def _attempt_spans(
    run: RunRecord, attempts: Sequence[AttemptRecord], steps: Sequence[StepRecord], now: int
) -> list[_AttemptSpan]:
    found: list[_AttemptSpan] = []
    after = run.created_at
    labels = attempt_labels(run, attempts)
    for attempt, label in zip(attempts, labels, strict=False):
        begin = max(attempt.started_at or attempt.finished_at, after)
        after = max(attempt.finished_at, begin)
        span = Span("attempt", label, begin, after, note=attempt.outcome)
        found.append(
            _AttemptSpan(span, attempt.claim_number, attempt.generation, attempt.outcome, [])
        )
    if run.state == "running" and run.claimed_at is not None:
        begin = max(run.claimed_at, after)
        span = Span("attempt", labels[-1], begin, max(now, begin), is_open=True, note="running")
        found.append(_AttemptSpan(span, run.claim_number, run.generation, "running", []))
    _place_steps(found, steps, now)
    for one, attempt in zip(found, attempts, strict=False):
        _add_raised(one, attempt)
    return [_begun_with_steps(one) for one in found]


def attempt_labels(run: RunRecord, attempts: Sequence[AttemptRecord]) -> list[str]:
    """Return labels for the attempts. An attempt that waited for something has several parts."""
    numbers = [(attempt.generation, attempt.attempt) for attempt in attempts]
    if run.state == "running":
        numbers.append((run.generation, run.attempt))
    labels = []
    parts: Counter[tuple[int, int]] = Counter()
    for generation, number in numbers:
        parts[generation, number] += 1
        part = parts[generation, number]
        again = f", generation {generation}" if generation > 1 else ""
        labels.append(f"attempt {number}{f', part {part}' if part > 1 else ''}{again}")
    return labels


def _place_steps(tries: Sequence[_AttemptSpan], steps: Sequence[StepRecord], now: int) -> None:
    """Add each step to the attempt where it ended, and each wait to the one where it began."""
    before = 0
    # The ends are sorted: an attempt starts after the previous one has ended.
    ends = [one.span.end for one in tries]
    by_claim = {one.claim_number: one for one in tries}
    for step in sorted(steps, key=lambda step: step.ended_at or now):
        if step.kind == "epoch" or not tries:
            continue
        held_in = by_claim.get(step.claim_number) if step.kind == "step" else None
        if held_in is not None and step.began_at != step.ended_at:
            held_in.steps.append(_held(step, held_in.span))
            before = held_in.steps[-1].end
            continue
        end = step.ended_at if step.done else None
        begin = step.began_at
        seen_at = begin if step.kind in _AWAITED else now if end is None else end
        # Search by the ends of attempts, since their starts are recorded slightly late.
        place = bisect_left(ends, seen_at)
        place = place if place < len(ends) else -1
        one = tries[place]
        if step.kind in _AWAITED:
            end = _over(step, tries[place + 1] if place not in {-1, len(tries) - 1} else None)
        elif end is not None and begin == end:
            # For a step that may run again, only the end is recorded. It started when the previous
            # step ended or when its attempt started.
            begin = min(end, max(one.span.begin, before))
        until = max(now if end is None else end, begin)
        one.steps.append(Span(step.kind, step.name, begin, until, is_open=end is None))
        before = until


def _held(step: StepRecord, attempt: Span) -> Span:
    """Return the bar of a step whose start is recorded because it must not run twice.

    It ends with its attempt at the latest. An operator may mark it done much later.
    """
    end = attempt.end if step.ended_at is None else min(step.ended_at, attempt.end)
    note = ""
    if not attempt.is_open and not step.done:
        note = _INTERRUPTED
    elif step.ended_at is not None and step.ended_at > end:
        note = _CALLED_DONE
    is_open = attempt.is_open and not step.done
    begin = min(step.began_at, end)
    return Span(step.kind, step.name, begin, end, is_open=is_open, note=note)


def _over(step: StepRecord, following: _AttemptSpan | None) -> int | None:
    """Return when a wait was over. The attempt that continues records it."""
    if not step.done or step.ended_at is None:
        return None
    ends = [step.ended_at]
    if step.kind == "sleep" and step.wake_at is not None:
        ends.append(step.wake_at)
    if following is not None:
        ends.append(following.span.begin)
    return max(step.began_at, min(ends))


def _add_raised(one: _AttemptSpan, attempt: AttemptRecord) -> None:
    """Add the step that raised an exception, which has no record of its own."""
    found = _ERROR_STEP.search(attempt.traceback or "")
    if found is None or one.outcome not in _BACKED_OFF:
        return
    if any(span.label == found[1] for span in one.steps):
        return
    begin = max([one.span.begin, *(span.end for span in one.steps)])
    end = one.span.end
    one.steps.append(Span("step", found[1], min(begin, end), end, note=one.outcome))


def _begun_with_steps(one: _AttemptSpan) -> _AttemptSpan:
    # The start of an attempt is derived from the time its end was written, slightly late.
    begin = min([one.span.begin, *(span.begin for span in one.steps)])
    return one._replace(span=one.span._replace(begin=begin))

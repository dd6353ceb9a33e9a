"""Computes percentiles, rates and the health summary from run counts. Pure functions."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from duly.clock import MICROSECONDS
from duly.core.histogram_bounds import BEYOND, BOUNDS
from duly.core.record import (
    FinishedRunsByTask,
    FinishedRunsByTime,
    OpenTransaction,
    QueueRecord,
    ScheduleRecord,
    WorkerRecord,
)
from duly.core.states import DEAD
from duly.core.stranded_runs import StrandedRuns
from duly.core.time_text import coarse_duration
from duly.dashboard.formats import count, count_dead, percent
from duly.dashboard.search_query import term

_MANY_FAILURES = 0.05
_MOST_FAILURES = 0.25
_LONG_WAIT = 60 * MICROSECONDS
_VERY_LONG_WAIT = 15 * 60 * MICROSECONDS
_LATE_SCHEDULE = 120 * MICROSECONDS
_NAMED = 3
"""At most this many stranded tasks are named."""


class RunStats(NamedTuple):
    """Statistics of some finished runs."""

    runs: int
    failed: int
    lasted: int
    """The sum of the durations from first start to end, in microseconds."""
    took: dict[int, int]
    waited: dict[int, int]

    @property
    def p50(self) -> float | None:
        """The duration that half of the runs did not exceed, in microseconds.

        If all durations are within one bucket, their mean is more precise than its bounds.
        """
        return self.mean if len(self.took) == 1 else quantile(self.took, 0.5)

    @property
    def p95(self) -> float | None:
        """The duration that 95 % of the runs did not exceed."""
        return self.mean if len(self.took) == 1 else quantile(self.took, 0.95)

    @property
    def wait_p95(self) -> float | None:
        """The waiting time that 95 % of the runs did not exceed."""
        return quantile(self.waited, 0.95)

    @property
    def mean(self) -> float | None:
        """The mean duration of the runs."""
        return self.lasted / self.runs if self.runs else None


def run_stats(ends: Iterable[FinishedRunsByTask]) -> RunStats:
    """Return the statistics of these runs."""
    runs = failed = lasted = 0
    took: dict[int, int] = {}
    waited: dict[int, int] = {}
    for row in ends:
        runs += row.runs
        lasted += row.lasted
        failed += row.runs if row.state in DEAD else 0
        took[row.took] = took.get(row.took, 0) + row.runs
        waited[row.waited] = waited.get(row.waited, 0) + row.runs
    return RunStats(runs, failed, lasted, took, waited)


def quantile(bounds: dict[int, int], share: float) -> float | None:
    """Return the microseconds that this share did not exceed, interpolated between the bounds."""
    total = sum(bounds.values())
    if not total:
        return None
    wanted = share * total
    passed = 0
    for bound in sorted(bounds):
        number = bounds[bound]
        if passed + number >= wanted:
            # Values within a bucket are assumed to be evenly distributed.
            lower = max((known for known in BOUNDS if known < bound), default=0)
            part = (wanted - passed) / number
            upper = bound if bound < BEYOND else 2 * lower
            return (lower + part * (upper - lower)) * 1_000
        passed += number
    return None


class HealthSummary(NamedTuple):
    """The health in one sentence, with its reasons."""

    level: str
    sentence: str
    reasons: tuple[tuple[str, str, str], ...]
    """The level, the text, and the page with details."""


class HealthInputs(NamedTuple):
    """The data that health is derived from."""

    now: int
    workers: Sequence[WorkerRecord]
    queues: Sequence[QueueRecord]
    ends: Sequence[FinishedRunsByTime]
    """The runs that ended in the last hour."""
    oldest_due_at: int | None
    schedules: Sequence[ScheduleRecord]
    oldest_transaction: OpenTransaction | None = None
    """The oldest transaction that prevents the removal of dead rows."""
    dead: int = 0
    """The number of dead letters of any age."""
    interrupted: int = 0
    stranded: Sequence[StrandedRuns] = ()
    """The runs that no live worker can run."""


def summarize_health(seen: HealthInputs) -> HealthSummary:
    """Return the health summary."""
    reasons = [
        *_of_workers(seen),
        *_of_stranded(seen),
        *_of_dead(seen.dead, seen.interrupted),
        *_of_failures(seen.ends),
        *_of_waiting(seen),
        *_of_queues(seen.queues),
        *_of_schedules(seen),
        *_of_transactions(seen.oldest_transaction),
    ]
    if any(level == "bad" for level, _, _ in reasons):
        return HealthSummary("bad", "Action needed.", tuple(reasons))
    if reasons:
        return HealthSummary("warn", "Working, with warnings.", tuple(reasons))
    live = _in_state(seen.workers, "live")
    done = sum(row.runs for row in seen.ends)
    words = f"{live} live worker{'s' * (live != 1)}, {done:,} runs ended in the last hour"
    return HealthSummary("good", "All is well.", (("good", words, "workers"),))


Reasons = Iterable[tuple[str, str, str]]


def _of_workers(seen: HealthInputs) -> Reasons:
    live, silent = (_in_state(seen.workers, state) for state in ("live", "silent"))
    if not live:
        waits = any(queue.ready or queue.waiting for queue in seen.queues)
        words = "no worker is live, and runs wait" if waits else "no worker is live"
        yield "bad" if waits else "warn", words, "workers"
    elif silent:
        are = "is" if silent == 1 else "are"
        yield "warn", f"{silent} of {live + silent} workers {are} silent", "workers"


def _of_stranded(seen: HealthInputs) -> Reasons:
    if not _in_state(seen.workers, "live"):
        return  # The lack of live workers is the cause, and is reported already.
    for each in seen.stranded[:_NAMED]:
        yield "bad", each.sentence, f"runs?{urlencode({'q': term('task', each.task)})}"
    more = len({each.task for each in seen.stranded[_NAMED:]})
    if more:
        tasks = f"{more} more task{'s' * (more != 1)}"
        yield "bad", f"runs of {tasks} wait for a worker that can run them", "tasks"


def _of_dead(dead: int, interrupted: int) -> Reasons:
    if interrupted:
        were = "run was" if interrupted == 1 else "runs were"
        had = "it had its effect" if interrupted == 1 else "they had their effects"
        words = f"{count_dead(interrupted)} {were} interrupted"
        place = f"runs?{urlencode({'q': 'state:interrupted'})}"
        yield "bad", f"{words}: find out whether {had}", place
    if dead:
        wait = "dead letter waits" if dead == 1 else "dead letters wait"
        yield "warn", f"{count_dead(dead)} {wait} for an operator", "dead"


def _in_state(workers: Sequence[WorkerRecord], state: str) -> int:
    return sum(worker.state == state for worker in workers)


def _of_failures(ends: Sequence[FinishedRunsByTime]) -> Reasons:
    runs = sum(row.runs for row in ends)
    failed = sum(row.runs for row in ends if row.state in DEAD)
    if runs and failed / runs >= _MANY_FAILURES:
        level = "bad" if failed / runs >= _MOST_FAILURES else "warn"
        words = f"{percent(failed, runs)} of the last hour's runs failed ({failed:,} of {runs:,})"
        yield level, words, "dead"


def _of_waiting(seen: HealthInputs) -> Reasons:
    if seen.oldest_due_at is None:
        return
    waited = seen.now - seen.oldest_due_at
    if waited >= _LONG_WAIT:
        level = "bad" if waited >= _VERY_LONG_WAIT else "warn"
        yield level, f"a run has been ready for {coarse_duration(waited)}", "queues"


def _of_queues(queues: Sequence[QueueRecord]) -> Reasons:
    for queue in queues:
        if queue.paused:
            waits = queue.ready + queue.waiting
            runs = "1 run waits" if waits == 1 else f"{count(waits)} runs wait"
            yield "warn", f"queue {queue.name} is paused, {runs} in it", "queues"


def _of_transactions(oldest: OpenTransaction | None) -> Reasons:
    if oldest is not None and oldest.is_too_long():
        age = coarse_duration(round(oldest.seconds * MICROSECONDS))
        words = f"a transaction has been open for {age} in {oldest.session()}"
        yield (
            "warn",
            f"{words}: the database cannot remove ended runs, so claiming runs becomes slow",
            "queues",
        )


def _of_schedules(seen: HealthInputs) -> Reasons:
    for schedule in seen.schedules:
        late = seen.now - (schedule.next_at or seen.now)
        if schedule.state == "active" and late > _LATE_SCHEDULE:
            yield "bad", f"schedule {schedule.name} is {coarse_duration(late)} late", "schedules"
        elif schedule.state == "paused" and schedule.reason:
            yield "warn", f"schedule {schedule.name} is paused: {schedule.reason}", "schedules"

"""Schedules under fault injection: they are due every second while workers are killed.

The counts come from the runs' effects, in a ledger separate from duly's tables, and are compared
with the instants that the expressions name. duly's firings only map runs to instants.
"""

import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from duly.clock import monotonic
from duly_prove import workload
from duly_prove.counts import document, sums
from duly_prove.demo import DemoProgress, ProgressCallback, stop_on
from duly_prove.faults import choose_child, kill_child
from duly_prove.feeder import waiting
from duly_prove.history import DueInstant, FiringAtEnd
from duly_prove.process_tree import pause_for, wait_for
from duly_prove.trial import Trial, is_working

TREES = 3
PROCESSES = 2
_CONCURRENCY = 4
_LEASE_SECONDS = 2.0
_BEAT_SECONDS = 0.5
_BODY_MILLISECONDS = 150
"""Long enough for a kill to hit a running task."""
_SHORTEST_SECONDS = 3.0
_KILL_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class _ScheduleKind(NamedTuple):
    """Schedules of one kind: their title, and the trigger of each."""

    title: str
    when: tuple[dict[str, Any], ...]


KINDS = (
    _ScheduleKind("every second", ({"every": 1},) * 6),
    _ScheduleKind(
        "* * * * * *",
        tuple(
            {"cron": "* * * * * *", "seconds_field": "first", "tz": tz}
            for tz in ("Europe/Paris", "America/New_York", "Asia/Kolkata")
        ),
    ),
    _ScheduleKind("*/2 * * * * *", ({"cron": "*/2 * * * * *", "seconds_field": "first"},) * 2),
)


class InstantCounts(NamedTuple):
    """The outcome of the instants of one kind of schedule, counted by their effects."""

    kind: str
    schedules: int
    due: int
    fired: int
    ran: int
    missed: int
    doubled: int


class ScheduleDemoResult(NamedTuple):
    """The result of the demo."""

    rows: tuple[InstantCounts, ...]
    kills: int
    attempts_lost: int
    """Runs that were hit by a kill and taken over by another worker."""
    seconds: float
    database: dict[str, str]
    seed: int

    @property
    def holds(self) -> bool:
        """Whether every due instant ran once."""
        return not any(row.missed or row.doubled for row in self.rows)

    def document(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return document(self, self.rows, total(self.rows))


def total(rows: tuple[InstantCounts, ...]) -> InstantCounts:
    """Return the sum of all kinds."""
    return InstantCounts("all", *sums(rows))


def run_schedule_demo(
    url: str, folder: Path, watch: ProgressCallback, *, seconds: float, seed: int
) -> ScheduleDemoResult:
    """Run the demo on a database of its own. It leaves no processes."""
    stop_on(signal.SIGTERM)
    with Trial(url, folder, seed=seed, records_transitions=False) as trial:
        return _ScheduleDemo(trial, watch, seconds=seconds).run()


class _ScheduleDemo:
    """One execution of the demo on one database."""

    def __init__(self, trial: Trial, watch: ProgressCallback, *, seconds: float) -> None:
        self._trial = trial
        self._watch = watch
        self._seconds = seconds
        self._numbers = dict(_numbered())
        """The number of each schedule, which its effects contain."""

    def run(self) -> ScheduleDemoResult:
        """Start workers, let schedules become due, kill workers, and count the effects."""
        trial = self._trial
        began_at = monotonic()
        self._watch(DemoProgress("starting workers", 0, 1, 0, 0))
        for _ in range(TREES):
            trial.start_tree(
                processes=PROCESSES,
                concurrency=_CONCURRENCY,
                lease=_LEASE_SECONDS,
                beat=_BEAT_SECONDS,
            )
        trial.wait_until_working()
        seconds = max(_SHORTEST_SECONDS, self._seconds - (monotonic() - began_at))
        self._add_schedules(datetime.now(UTC) + timedelta(seconds=seconds))
        self._strike_for(seconds)
        wait_for(self._have_ended, _PATIENCE_SECONDS, _LOOK_SECONDS)
        trial.wait_until_recovered(_PATIENCE_SECONDS)
        self._report_progress("stopping workers")
        trial.stop_all()
        return self._count(monotonic() - began_at)

    def _add_schedules(self, end: datetime) -> None:
        schedules = self._trial.app.schedules
        for name, number in self._numbers.items():
            schedules.add(
                name,
                workload.order,
                args=(number, _BODY_MILLISECONDS),
                misfire="all",
                overlap="allow",
                end=end,
                **_when(name),
            )
            self._trial.expect_firings(name)

    def _strike_for(self, seconds: float) -> None:
        until = monotonic() + seconds
        kill_at = monotonic() + _KILL_SECONDS / 2
        while (now := monotonic()) < until:
            if now >= kill_at:
                self._kill()
                kill_at = now + _KILL_SECONDS * self._trial.random.uniform(0.8, 1.2)
            self._report_progress("firing")
            pause_for(_LOOK_SECONDS)

    def _kill(self) -> None:
        trees = [tree for tree in self._trial.trees if is_working(tree)]
        tree = self._trial.random.choice(trees) if trees else None
        child = None if tree is None else choose_child(tree, self._trial.random)
        if tree is not None and child is not None:
            self._trial.faults.append(kill_child(tree, child))

    def _have_ended(self) -> bool:
        """Return whether the last instant of every schedule has fired and run."""
        self._report_progress("firing")
        get = self._trial.app.schedules.get
        return all(get(name).state == "ended" for name in self._numbers) and not waiting(
            self._trial.app
        )

    def _report_progress(self, what: str) -> None:
        done = len(self._trial.database.rows())
        self._watch(DemoProgress(what, done, len(self._trial.due), self._kills(), 0))

    def _kills(self) -> int:
        return sum(strike.took_effect for strike in self._trial.faults)

    def _count(self, seconds: float) -> ScheduleDemoResult:
        database = self._trial.database
        return ScheduleDemoResult(
            rows=count(self._trial.due, database.firings(), database.numbers()),
            kills=self._kills(),
            attempts_lost=sum(attempt.outcome == "lost" for attempt in database.attempts()),
            seconds=round(seconds, 1),
            database=database.describe(),
            seed=self._trial.seed,
        )


def count(
    due: Sequence[DueInstant], firings: Iterable[FiringAtEnd], effects: Iterable[tuple[str, int]]
) -> tuple[InstantCounts, ...]:
    """Return the counts of instants by their effects, which name a run and a schedule's number."""
    runs = {(firing.schedule, firing.instant): firing.run_id for firing in firings}
    done: dict[int, Counter[str]] = defaultdict(Counter)
    for run_id, number in effects:
        done[number][run_id] += 1
    numbers = dict(_numbered())
    rows = []
    for kind in KINDS:
        names = {name for name in numbers if _kind_of(name) is kind}
        made = [
            (each, runs.get((each.schedule, each.instant)))
            for each in due
            if each.schedule in names
        ]
        ran = {
            run_id
            for each, run_id in made
            if run_id is not None and done[numbers[each.schedule]][run_id]
        }
        row = InstantCounts(
            kind=kind.title,
            schedules=len(names),
            due=len(made),
            fired=sum(run_id is not None for _each, run_id in made),
            ran=len(ran),
            missed=len(made) - len(ran),
            # All effects of a schedule beyond one per instant, from any run.
            doubled=sum(done[numbers[name]].total() for name in names) - len(ran),
        )
        rows.append(row)
    return tuple(rows)


def _numbered() -> Iterator[tuple[str, int]]:
    number = 0
    for kind_place, kind in enumerate(KINDS):
        for place in range(len(kind.when)):
            yield f"{kind_place}:{place}", number
            number += 1


def _kind_of(name: str) -> _ScheduleKind:
    return KINDS[int(name.partition(":")[0])]


def _when(name: str) -> dict[str, Any]:
    return _kind_of(name).when[int(name.partition(":")[2])]

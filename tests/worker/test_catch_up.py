"""A worker that finds schedules a week late catches up while everything else continues.

`make test` has ten late schedules and judges the ledger. `make prove` has a thousand, and judges
the times as well.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise

import pytest

from duly import Duly, step
from duly.core.record import FiringRecord
from duly.events import AttemptEnded, Event
from tests.integrations.evidence import SCALE, keep
from tests.servers.processes import wait_until
from tests.store.conformance.stores import opened_tables

LATE = 1_000 if SCALE > 1 else 10
WEEK_SECONDS, MINUTE, SECOND = 7 * 86_400, 60_000_000, 1_000_000
CATCH_UP_SECONDS, ON_TIME_SECONDS, WRITE_SECONDS = 600.0, 1.0, 0.5
ON_TIME = [f"on-time-{n}" for n in range(5)]


@dataclass
class CaughtUp:
    """What was measured while schedules caught up."""

    schedules: int = LATE
    instants: int = 0
    seconds: float = 0.0
    on_time_firings: int = 0
    on_time_skipped: int = 0
    latest_firing_seconds: float = 0.0
    writes: int = 0
    longest_write_seconds: float = 0.0
    longest_of_kind: dict[str, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)


@pytest.mark.scaled
@pytest.mark.timeout(120 + CATCH_UP_SECONDS * (SCALE > 1))
def test_schedules_a_week_late_catch_up_while_others_fire(app: Duly, store_url, store_kind):
    @app.task(name="tidy")
    async def tidy() -> None: ...

    begins = add_late(app, tidy, store_url)
    measured = CaughtUp()
    probe = Probe(app, measured)
    with app.worker(concurrency=2), timed_writes(probe):
        for name in ON_TIME:
            app.schedules.add(name, tidy, every=1, overlap="allow")
        began_at = time.monotonic()
        wait_until(
            lambda: is_caught_up(app), seconds=60 + CATCH_UP_SECONDS * (SCALE > 1), what="caught up"
        )
        measured.seconds = time.monotonic() - began_at

    measured.instants = sum(check_ledger(app, name, begin) for name, begin in begins.items())
    judge_on_time(app, measured)
    if SCALE > 1:
        judge_times(measured)
        assert measured.on_time_firings > 0
        keep("catch-up", store_kind, asdict(measured))
    assert not measured.broken, measured
    assert measured.instants >= LATE * WEEK_SECONDS // 60


def add_late(app: Duly, task, url: str) -> dict[str, int]:
    """Add minutely schedules that missed a week; return the first missed instant of each."""
    names = [f"late-{n:04}" for n in range(LATE)]
    for name in names:
        app.schedules.add(name, task, cron="* * * * *")
    with opened_tables(url) as tables:
        week = str(WEEK_SECONDS * SECOND) if url.startswith("sqlite") else "interval '7 days'"
        for column in ("next_at", "look_at"):
            tables.execute(f"UPDATE duly_schedules SET {column} = {column} - {week}")  # noqa: S608
    return {name: next_at(app, name) for name in names}


def next_at(app: Duly, name: str) -> int:
    return round(app.schedules.get(name).next_at.timestamp()) * SECOND


def is_caught_up(app: Duly) -> bool:
    (first, *_) = app.store.list_next_schedules(1)
    return first.next_at > app.store.now() - 60 * SECOND


@contextmanager
def timed_writes(probe: "Probe") -> Iterator[None]:
    """Write all the time in this process, whose connections the worker uses too."""
    is_over = threading.Event()

    def write() -> None:
        while not is_over.wait(0.02):
            probe.write()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join()


class Probe:
    """Times one write of each kind: of a lock, an enqueue, a step and the end of a run."""

    def __init__(self, app: Duly, measured: CaughtUp) -> None:
        self._measured = measured
        self._returned_at = 0.0
        self._is_recorded = threading.Event()
        self._lock = app.lock("probe")

        @app.task(name="probe", priority=1)
        def run() -> None:
            with self._timed("step"):
                step("nothing", lambda: None)
            self._returned_at = time.monotonic()

        self._run = run
        app.bus.subscribe(self._note)

    def write(self) -> None:
        """Write once of each kind; the time until the run is claimed does not count."""
        with self._timed("lock"):
            held = self._lock.try_acquire()
        with self._timed("release"):
            held.release()
        self._is_recorded.clear()
        with self._timed("enqueue"):
            self._run.enqueue()
        assert self._is_recorded.wait(CATCH_UP_SECONDS)

    def _note(self, event: Event) -> None:
        if isinstance(event, AttemptEnded) and event.claim.task == "probe":
            self._count("end", time.monotonic() - self._returned_at)
            self._is_recorded.set()

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        began_at = time.monotonic()
        yield
        self._count(kind, time.monotonic() - began_at)

    def _count(self, kind: str, took: float) -> None:
        measured = self._measured
        measured.writes += 1
        measured.longest_of_kind[kind] = max(measured.longest_of_kind.get(kind, 0.0), took)
        measured.longest_write_seconds = max(measured.longest_write_seconds, took)


def check_ledger(app: Duly, name: str, begin: int) -> int:
    """Return how many instants the ledger has, each of them once and none left out."""
    rows = ledger(app, name)
    for row in rows:
        assert row.last_instant == row.instant + (row.row - 1) * MINUTE, row
    for row, later in pairwise(rows):
        assert later.instant == row.last_instant + MINUTE, (row, later)
    assert rows[0].instant == begin
    assert rows[-1].last_instant + MINUTE == next_at(app, name)
    return sum(row.row for row in rows)


def ledger(app: Duly, name: str) -> list[FiringRecord]:
    rows = app.store.list_firings(name, 2**62, 10_000)
    return rows[::-1]


def judge_on_time(app: Duly, measured: CaughtUp) -> None:
    for name in ON_TIME:
        for row in ledger(app, name):
            measured.on_time_firings += 1
            late = (row.fired_at - row.instant) / SECOND
            measured.latest_firing_seconds = max(measured.latest_firing_seconds, late)
            measured.on_time_skipped += row.row if row.run_id is None else 0


def judge_times(measured: CaughtUp) -> None:
    for what, limit in (
        ("seconds", CATCH_UP_SECONDS),
        ("on_time_skipped", 0),
        ("latest_firing_seconds", ON_TIME_SECONDS),
        ("longest_write_seconds", WRITE_SECONDS),
    ):
        if getattr(measured, what) > limit:
            measured.broken.append(f"{what} is {getattr(measured, what):.2f}, more than {limit}")

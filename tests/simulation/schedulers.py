"""Eight schedulers on one store, with clocks that disagree, of which some die in mid-commit."""

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duly import faultpoints
from duly.core.cron import Cron
from duly.core.schedule import Every, Rules, Trigger, instants, rules_text, trigger_text
from duly.store.opening import open_store
from duly.store.ops import FireSchedules, PutSchedule
from duly.store.sqlite.store import SqliteStore

SECOND = 1_000_000
DAY = 86_400 * SECOND
BEGIN = 1_735_689_600 * SECOND
"""2025-01-01 in UTC."""
SKEW_SECONDS = 300
SCHEDULERS = 8
DEATHS_PER_LOOK = 0.1
POINTS = ("operate.before_write", "operate.before_commit", "operate.after_commit")
ZONES = (
    "Europe/Paris",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "America/Santiago",
    "UTC",
)
EXPRESSIONS = ("30 2 * * *", "*/20 * * * *", "0 */3 * * *", "15 0 1 * *", "0 9 * * MON")


class Killed(BaseException):
    """A process that ends here."""


class SkewedClock:
    """A host's wall clock, which is off by some minutes."""

    def __init__(self, world: "World", skew: int) -> None:
        self._world = world
        self.skew = skew

    def now(self) -> int:
        return self._world.now + self.skew

    def uptime(self) -> int:
        return self._world.now


@dataclass
class World:
    """True time, the schedulers, and what is known of their deaths."""

    file: Path
    seed: int
    now: int = BEGIN
    deaths: Counter[str] = field(default_factory=Counter)
    looks: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 - so that a seed repeats all of it
        open_store(f"sqlite:///{self.file}").close()
        self.stores = [self._open() for _ in range(SCHEDULERS)]
        self.triggers: dict[str, Trigger] = {
            f"{expression} {zone}": Cron(expression, zone)
            for expression in EXPRESSIONS
            for zone in ZONES
        }
        self.triggers["every 7 min"] = Every(7 * 60 * SECOND, BEGIN)
        rules = Rules(misfire="all", max_catch_up=1000, overlap="allow")
        # With the true time, so that every first instant is the same for everybody.
        truth = SqliteStore(self.file, clock=SkewedClock(self, 0))
        truth.apply([_put(name, trigger, rules) for name, trigger in self.triggers.items()])
        truth.close()

    def live(self, days: float) -> None:
        """Let time pass; whoever looks, looks, and some die on the way."""
        end = self.now + round(days * DAY)
        while self.now < end:
            self.now += self.random.choice((20, 60, 600, 3600, 4 * 3600)) * SECOND
            for _ in range(self.random.randrange(4)):
                self._look(self.random.randrange(SCHEDULERS))
        for place in range(SCHEDULERS):
            self._look(place, may_die=False)

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def missed_and_extra(self) -> tuple[list[str], list[str]]:
        """Compare the ledger with what was due by the clock of the scheduler that is ahead."""
        ahead = max(store._clock.skew for store in self.stores)
        missed, extra = [], []
        for name, trigger in self.triggers.items():
            due = set()
            for instant in instants(trigger, Rules(), BEGIN):
                if instant > self.now + ahead:
                    break
                due.add(instant)
            fired = [row.instant for row in self._firings(name)]
            assert len(fired) == len(set(fired))
            missed += [f"{name} at {instant}" for instant in due - set(fired)]
            extra += [f"{name} at {instant}" for instant in set(fired) - due]
        return missed, extra

    def runs_and_firings(self) -> tuple[int, int]:
        """Count the runs, and the firings that say that they made one."""
        store = self.stores[0]
        runs = store._query("SELECT count(*) FROM duly_runs", {})[0][0]
        fired = "SELECT count(DISTINCT run_id) FROM duly_firings WHERE run_id IS NOT NULL"
        return runs, store._query(fired, {})[0][0]

    def _firings(self, name: str) -> list[Any]:
        found: list[Any] = []
        before = 2**62
        while page := self.stores[0].list_firings(name, before, 5000):
            found += page
            before = page[-1].instant
        return found

    def _open(self) -> SqliteStore:
        skew = self.random.randint(-SKEW_SECONDS, SKEW_SECONDS) * SECOND
        return SqliteStore(self.file, clock=SkewedClock(self, skew))

    def _look(self, place: int, *, may_die: bool = True) -> None:
        self.looks += 1
        point = self.random.choice(POINTS)
        if may_die and self.random.random() < DEATHS_PER_LOOK:
            faultpoints.arm(point, _die)
        try:
            while self.stores[place].apply([FireSchedules(50)])[0].looked_at:
                pass
        except Killed:
            self.deaths[point] += 1
            skew = self.stores[place]._clock.skew
            self.stores[place].close()
            self.stores[place] = SqliteStore(self.file, clock=SkewedClock(self, skew))
        finally:
            faultpoints.disarm()


def _die() -> None:
    raise Killed


def _put(name: str, trigger: Trigger, rules: Rules) -> PutSchedule:
    return PutSchedule(
        name,
        "runtime",
        "simulation",
        "sim:task",
        "default",
        "loop",
        0,
        "[[],{}]",
        trigger_text(trigger),
        rules_text(rules),
    )

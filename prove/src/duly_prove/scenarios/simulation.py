"""Years of eight schedulers on one store, with clocks that disagree. Some die mid-commit.

Time is simulated. Before every look, the store's clock is set to the clock of the scheduler that
looks. On SQLite that is the host's clock, on PostgreSQL the server's.
"""

import os
from collections.abc import Iterator
from itertools import takewhile

from duly import faultpoints
from duly.core.cron import Cron
from duly.core.schedule import (
    SECOND,
    IntervalTrigger,
    Rules,
    Trigger,
    instants,
    rules_text,
    trigger_text,
)
from duly.store.due_schedules import fire_due
from duly.store.ops.schedules import PutSchedule
from duly.store.protocol import Store
from duly.store.store_factory import open_store
from duly_prove.faults import InjectedFault
from duly_prove.history import DueInstant
from duly_prove.trial import Trial

DAYS = 2 * 365
SCHEDULERS = 8
ZONES = (
    "Europe/Paris",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "America/Santiago",
    "UTC",
)
EXPRESSIONS = ("30 2 * * *", "*/20 * * * *", "0 */3 * * *", "15 0 1 * *", "0 9 * * MON")
_DAY = 86_400 * SECOND
_BEGIN = 1_735_689_600 * SECOND
"""2025-01-01 in UTC."""
_QUEUE = "duly-simulated"
_SKEW_SECONDS = 300
_STEP_SECONDS = (20, 60, 600, 3600, 4 * 3600)
_LOOKS_PER_STEP = 4
_DEATHS_PER_LOOK = 0.1
_BATCH = 50
_POINTS = ("operate.before_write", "operate.before_commit", "operate.after_commit")
_RULES = Rules(misfire="all", max_catch_up=1000, overlap="allow")


def simulation(trial: Trial, scale: float) -> None:
    """Let simulated time pass, and record what was due."""
    days = DAYS * scale
    world = SimulatedWorld(trial)
    try:
        world.live(days)
    finally:
        world.close()
    trial.due += world.due()
    trial.facts |= {
        "simulated_days": days,
        "schedulers": SCHEDULERS,
        "skews_seconds": [skew // SECOND for skew in world.skews],
        "zones": list(ZONES),
        "schedules": len(world.triggers),
        "looks": world.looks,
    }


class SimulatedWorld:
    """The true time, the schedulers, and the instants that they should have fired."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._random = trial.random
        self._now = _BEGIN
        self._clock = _SettableClock()
        self.looks = 0
        self.skews = [
            self._random.randint(-_SKEW_SECONDS, _SKEW_SECONDS) * SECOND for _ in range(SCHEDULERS)
        ]
        self.triggers: dict[str, Trigger] = {
            f"{zone}:{place}": Cron(expression, zone)
            for place, expression in enumerate(EXPRESSIONS)
            for zone in ZONES
        }
        self.triggers["interval"] = IntervalTrigger(7 * 60 * SECOND, _BEGIN)
        trial.database.simulate_time()
        self._stores = [self._open() for _ in range(SCHEDULERS)]
        # Set the true time, so that every first instant is the same for all schedulers.
        self._set_clock(skew=0)
        self._stores[0].apply([_put(name, trigger) for name, trigger in self.triggers.items()])

    def live(self, days: float) -> None:
        """Let time pass while random schedulers look, and let some of them die."""
        end = self._now + round(days * _DAY)
        while self._now < end:
            past = self._now - _BEGIN
            self._trial.report_progress("days", past // _DAY, round(days))
            self._now += self._random.choice(_STEP_SECONDS) * SECOND
            for _ in range(self._random.randrange(_LOOKS_PER_STEP)):
                self._look(self._random.randrange(SCHEDULERS))
        for place in range(SCHEDULERS):
            self._look(place, may_die=False)

    def due(self) -> Iterator[DueInstant]:
        """Return the instants due by the clock of the scheduler that is ahead."""
        last = self._now + max(self.skews)
        for name, trigger in self.triggers.items():
            found = instants(trigger, Rules(), _BEGIN)
            yield from (
                DueInstant(name, 1, instant)
                for instant in takewhile(lambda each: each <= last, found)
            )

    def close(self) -> None:
        """Close the stores."""
        for store in self._stores:
            store.close()

    def _look(self, place: int, *, may_die: bool = True) -> None:
        self.looks += 1
        self._set_clock(self.skews[place])
        point = self._random.choice(_POINTS)
        if may_die and self._random.random() < _DEATHS_PER_LOOK:
            faultpoints.arm(point, _die)
        try:
            while fire_due(self._stores[place], _BATCH).looked_at:
                pass
        except _SimulatedKill:
            self._trial.faults.append(
                InjectedFault("kill", f"scheduler at {point}", os.getpid(), None, took_effect=True)
            )
            self._stores[place].close()
            self._stores[place] = self._open()
        finally:
            faultpoints.disarm()

    def _open(self) -> Store:
        return open_store(self._trial.url, clock=self._clock, migrate=False)

    def _set_clock(self, skew: int) -> None:
        self._clock.time = self._now + skew
        self._trial.database.set_time(self._clock.time)


class _SettableClock:
    """A clock that shows the time it was set to."""

    time = _BEGIN

    def now(self) -> int:
        return self.time

    def uptime(self) -> int:
        return self.time


class _SimulatedKill(BaseException):
    """A simulated kill of a process."""


def _die() -> None:
    raise _SimulatedKill


def _put(name: str, trigger: Trigger) -> PutSchedule:
    return PutSchedule(
        name,
        source="runtime",
        place="simulation",
        task="simulated",
        queue=_QUEUE,
        lane="loop",
        priority=0,
        arguments="[[],{}]",
        trigger=trigger_text(trigger),
        rules=rules_text(_RULES),
    )

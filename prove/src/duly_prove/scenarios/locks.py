"""Processes race for a lock whose holder has vanished. One acquires it, and the fence grows."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from duly.store.ops.locks import ReleaseLock, RenewLock
from duly_prove.faults import InjectedFault
from duly_prove.racer_process import LockRacers, RacerResult
from duly_prove.trial import Trial

RACES = 1_000
PROCESSES = 8
_NAME = "prove"


class Race(NamedTuple):
    """The result of one race."""

    number: int
    tries: list[RacerResult]
    late_holder_was_heard: bool
    """Whether the previous holder could still renew or release the lock afterwards."""

    @property
    def winners(self) -> list[RacerResult]:
        """The processes that acquired the lock."""
        return [each for each in self.tries if each.is_ours]


def locks(trial: Trial, scale: float) -> None:
    """Let the lock expire for every winner, and race for it again."""
    wanted = max(2, round(RACES * scale))
    races: list[Race] = []
    with LockRacers(trial.starter, trial.url, PROCESSES) as racers:
        vanished: RacerResult | None = None
        for number in range(wanted):
            trial.report_progress("races", number, wanted)
            tries = racers.race(_NAME)
            is_heard = vanished is not None and _try_as_late_holder(trial, vanished)
            races.append(Race(number, tries, is_heard))
            for winner in races[-1].winners:
                vanished = winner
                trial.faults.append(_expire(trial, winner))
    trial.violations += broken_races(races)
    winners = [winner for race in races for winner in race.winners]
    trial.facts |= {
        "races": wanted,
        "processes": PROCESSES,
        "winners": len(winners),
        "first_and_last_fence": [winner.fence for winner in (*winners[:1], *winners[-1:])],
        "won_by_each_process": sorted(Counter(winner.pid for winner in winners).values()),
        "late_holders_refused": sum(not race.late_holder_was_heard for race in races[1:]),
    }


def broken_races(races: Iterable[Race]) -> Iterator[str]:
    """Yield the races without exactly one winner, or with a fence that did not grow."""
    largest = 0
    for race in races:
        if len(race.winners) != 1:
            yield f"race {race.number} had {len(race.winners)} winners"
        for winner in race.winners:
            if winner.fence <= largest:
                yield f"race {race.number} gave fence {winner.fence} after {largest}"
            largest = max(largest, winner.fence)
        if race.late_holder_was_heard:
            yield f"the holder before race {race.number} renewed or released a lost lock"


def _expire(trial: Trial, holder: RacerResult) -> InjectedFault:
    """Expire the holder's lock at once, as if the holder had vanished that long ago."""
    op = RenewLock(_NAME, holder.owner, holder.fence, ttl=1)
    is_ours = trial.app.store.do(op)
    return InjectedFault("expiry", "lock", holder.pid, None, took_effect=is_ours)


def _try_as_late_holder(trial: Trial, holder: RacerResult) -> bool:
    """Renew and release a lock for its former holder. Return whether either took effect."""
    place = (_NAME, holder.owner, holder.fence)
    return any(trial.app.store.apply([RenewLock(*place, ttl=1), ReleaseLock(*place)]))

"""The example's `nightly_billing` every few seconds: its due instants, firings and bills."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise

from duly import Duly
from tests.integrations.django.shop import SOON, Shop
from tests.servers.processes import wait_until

NAME = "shop.tasks.nightly_billing"
EVERY_SECOND = "* * * * * *"
MOST = 1_000


@dataclass
class Billed:
    """The outcome of a schedule's instants, and the defects found in it."""

    instants: int = 0
    """Due instants, from the first to the last one that is checked."""
    runs: int = 0
    succeeded: int = 0
    bills: int = 0
    """Bills of those runs."""
    schedulers_killed: int = 0
    """Processes that were killed while they fired."""
    delivered_again: int = 0
    broken: list[str] = field(default_factory=list)


def fired(seen: Duly) -> list:
    """Return the firing of each instant, the first one first."""
    return sorted(seen.schedules.firings(NAME, limit=MOST), key=lambda firing: firing.instant)


def done(seen: Duly) -> list[str]:
    """Return the succeeded runs of instants."""
    runs = [seen.runs.get(firing.run_id) for firing in fired(seen) if firing.run_id]
    return [run.id for run in runs if run.state == "succeeded"]


def wait_for_instants(seen: Duly, count: int, *, every: float = 1) -> None:
    """Wait until this many instants are billed."""

    def is_done() -> bool:
        known = [schedule.name for schedule in seen.schedules.list()]
        return NAME in known and len(done(seen)) >= count

    # A dozen processes have to start, which takes long on a busy machine.
    seconds = 3 * SOON + (2 + every) * count
    wait_until(is_done, seconds=seconds, what=f"{count} instants are billed")


def wait_for_all(seen: Duly) -> int:
    """Wait until the run of each instant fired so far is final. Return their number.

    Of two instants the second waits for the first, and runs after it.
    """
    count = len(fired(seen))

    def have_ended() -> bool:
        runs = [firing.run_id for firing in fired(seen)[:count]]
        return all(run and seen.runs.get(run).is_final for run in runs)

    wait_until(have_ended, seconds=3 * SOON + 10 * count, what=f"{count} instants have ended")
    return count


def judge(
    shop: Shop, seen: Duly, *, every: float = 1, first: int = MOST, lost: bool = False
) -> Billed:
    """Check the first instants: each is recorded, none was skipped, none was billed twice.

    With `lost`, a task may lose its database server. Its run is then failed or interrupted, for an
    operator.
    """
    # Firings are read before bills, so every bill that is read belongs to a firing.
    firings = fired(seen)[:first]
    finished = set(done(seen))
    bills = Counter(shop.read("SELECT run_id FROM shop_billing"))
    runs = [firing.run_id for firing in firings if firing.run_id]
    told = Billed(
        len(firings), len(runs), len(finished.intersection(runs)), sum(bills[run] for run in runs)
    )
    steps = {late.instant - early.instant for early, late in pairwise(firings)}
    if steps - {timedelta(seconds=every)}:
        told.broken.append("an instant that was due is on no record")
    told.broken += [
        f"{firing.instant} was skipped: {firing.reason}"
        for firing in firings
        if firing.outcome not in {"run", "caught_up", "waiting"}
    ]
    if len(runs) != len(set(runs)):
        told.broken.append("two instants have one run")
    if bills.total() != len(bills):
        told.broken.append("a night was billed twice")
    if not finished <= set(bills):
        told.broken.append("a night is said to be billed, and is not")
    fired_since = {firing.run_id for firing in fired(seen)}
    if not set(bills) <= fired_since:
        told.broken.append("a bill is of no night")
    dead = seen.dead.list()
    if dead and not lost:
        told.broken.append(f"{len(dead)} nights are dead letters: {dead[0].record.error}")
    return told

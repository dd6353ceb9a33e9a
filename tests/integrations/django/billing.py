"""`nightly_billing` of the example, on every second: what was due, was fired, and was billed."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

from duly import Duly
from tests.integrations.django.shop import SOON, Shop
from tests.servers.processes import wait_until

NAME = "shop.tasks.nightly_billing"
EVERY_SECOND = "* * * * * *"
MOST = 1_000


@dataclass
class Billed:
    """What came of the instants of a schedule, and what should not have."""

    instants: int = 0
    """Due instants, from the first to the last that was fired."""
    runs: int = 0
    succeeded: int = 0
    bills: int = 0
    schedulers_killed: int = 0
    """Processes that were killed while they fired."""
    delivered_again: int = 0
    broken: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return it as evidence."""
        return asdict(self)


def done(seen: Duly) -> list[str]:
    """Return the runs of instants that have succeeded."""
    fired = [fired.run_id for fired in seen.schedules.firings(NAME, limit=MOST) if fired.run_id]
    return [run_id for run_id in fired if seen.runs.get(run_id).state == "succeeded"]


def wait_for_instants(seen: Duly, count: int) -> None:
    """Wait until so many instants are billed."""

    def is_done() -> bool:
        known = [schedule.name for schedule in seen.schedules.list()]
        return NAME in known and len(done(seen)) >= count

    # A dozen processes have to begin, and where many others do, that takes long.
    wait_until(is_done, seconds=3 * SOON + 3 * count, what=f"{count} instants are billed")


def judge(shop: Shop, seen: Duly, *, lost: bool = False) -> Billed:
    """Look at every instant: each is there, none was skipped, none billed twice.

    Where a body may be `lost`, with its server, it has failed or was interrupted, for a person.
    """
    # No instant is added to what was fired before what is billed is read, nor taken away.
    firings = sorted(seen.schedules.firings(NAME, limit=MOST), key=lambda firing: firing.instant)
    finished = set(done(seen))
    bills = Counter(shop.ask("' '.join(Billing.objects.values_list('run_id', flat=True))").split())
    runs = [firing.run_id for firing in firings if firing.run_id]
    told = Billed(len(firings), len(runs), len(finished), bills.total())
    steps = {late.instant - early.instant for early, late in pairwise(firings)}
    if steps - {timedelta(seconds=1)}:
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
    fired_since = {firing.run_id for firing in seen.schedules.firings(NAME, limit=MOST)}
    if not set(bills) <= fired_since:
        told.broken.append("a bill is of no night")
    dead = seen.dead.list()
    if dead and not lost:
        told.broken.append(f"{len(dead)} nights are dead letters: {dead[0].record.error}")
    return told

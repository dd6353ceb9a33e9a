"""The outcome of the example shop's orders and instants, and the defects found in them."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sqlalchemy import create_engine, make_url, text

from duly import Duly
from tests.integrations.counter import EffectCounter
from tests.servers.processes import wait_until

_PAGE = 200
UNFINISHED = ("queued", "running")
_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
TASKS = ("charge", "send_receipt", "book_courier", "tally")


@dataclass
class Judgement:
    """Orders that a shop took while its processes were killed or restarted."""

    processes: int = 0
    kills: int = 0
    restarts: int = 0
    """Restarts of all processes, one after the other."""
    accepted: int = 0
    unanswered: int = 0
    orders: int = 0
    charges: int = 0
    receipts_begun: int = 0
    couriers_begun: int = 0
    couriers_interrupted: int = 0
    attempts_lost: int = 0
    attempts_stopped: int = 0
    instants: int = 0
    tallies: int = 0
    broken: list[str] = field(default_factory=list)


class Books:
    """The records of the database and of the counter, once every run is final."""

    def __init__(self, duly: Duly, counter: EffectCounter) -> None:
        self._duly = duly
        self._counter = counter
        url = make_url(duly.url)
        self._engine = create_engine(url.set(drivername=_DRIVERS[url.get_backend_name()]))

    def wait_until_final(self, *, seconds: float) -> None:
        """Stop new instants, and wait until every run is final."""
        self._duly.schedules.pause("tally")
        wait_until(
            lambda: not self._duly.runs.list(state=UNFINISHED, limit=1),
            seconds=seconds,
            what="all runs are final",
        )

    def judge(self, accepted: list[dict[str, Any]], *, unanswered: int) -> Judgement:
        """Compare the answers that customers got with the work that was done."""
        told = Judgement(accepted=len(accepted), unanswered=unanswered)
        orders = {row[0] for row in self._rows("SELECT id FROM orders")}
        charged = Counter(row[0] for row in self._rows("SELECT order_id FROM charges"))
        told.orders, told.charges = len(orders), charged.total()
        broken = told.broken
        broken += [
            f"order {each['order']} is lost" for each in accepted if each["order"] not in orders
        ]
        broken += [
            f"order {each} is charged {charged[each]} times"
            for each in orders
            if charged[each] != 1
        ]
        broken += [f"a charge of order {each}, which is none" for each in charged.keys() - orders]
        broken += [
            f"{run.record.task} is {run.state}" for run in self._duly.runs.list(state=UNFINISHED)
        ]
        self._judge_outside(told, orders)
        self._judge_instants(told)
        for run in self._runs():
            outcomes = Counter(attempt.outcome for attempt in run.attempts())
            told.attempts_lost += outcomes["lost"]
            told.attempts_stopped += outcomes["stopped"]
        self._engine.dispose()
        return told

    def _judge_outside(self, told: Judgement, orders: set[int]) -> None:
        count = self._counter.count
        mails, couriers = count("mail-ended"), count("courier-begun")
        told.receipts_begun = count("mail-begun").total()
        told.couriers_begun = couriers.total()
        states = Counter(run.state for run in self._runs("book_courier"))
        told.couriers_interrupted = states["interrupted"]
        told.broken += [f"order {each} has no receipt" for each in orders if not mails[str(each)]]
        told.broken += [f"{n} couriers for order {each}" for each, n in couriers.items() if n > 1]
        allowed = {"succeeded", "interrupted"}
        told.broken += [
            f"{n} couriers {state}" for state, n in states.items() if state not in allowed
        ]
        if count("courier-ended").total() < states["succeeded"] or states.total() != len(orders):
            told.broken.append(f"couriers of {len(orders)} orders: {dict(states)}")
        others = [run for task in TASKS if task != "book_courier" for run in self._runs(task)]
        told.broken += [
            f"{run.record.task} {run.state}, {run.cause}"
            for run in others
            if run.state != "succeeded"
        ]

    def _judge_instants(self, told: Judgement) -> None:
        firings = self._firings()
        rows = Counter(row[0] for row in self._rows("SELECT run_id FROM tallies"))
        told.instants, told.tallies = len(firings), rows.total()
        instants = sorted(firing.instant for firing in firings)
        gaps = {(later - earlier).total_seconds() for earlier, later in pairwise(instants)}
        if gaps - {1.0}:
            told.broken.append(f"instants are so many seconds apart: {sorted(gaps)}")
        runs = Counter(firing.run_id for firing in firings)
        told.broken += [
            f"{n} instants of run {each}" for each, n in runs.items() if n > 1 or not each
        ]
        if rows != runs:
            told.broken.append(f"{rows.total()} tallies of {len(firings)} instants")

    def _firings(self) -> list[Any]:
        found: list[Any] = []
        before = None
        while page := self._duly.schedules.firings("tally", limit=_PAGE, before=before):
            found += page
            before = page[-1].instant
        return [firing for firing in found if firing.reason != "paused"]

    def _runs(self, task: str | None = None) -> list[Any]:
        name = None if task is None else f"examples.fastapi_shop.tasks:{task}"
        page = self._duly.runs.list(task=name, limit=_PAGE)
        found = list(page)
        while page.cursor is not None:
            page = self._duly.runs.list(task=name, limit=_PAGE, cursor=page.cursor)
            found += page
        return found

    def _rows(self, statement: str) -> list[Any]:
        with self._engine.connect() as connection:
            return list(connection.execute(text(statement)))

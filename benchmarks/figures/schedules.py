"""Measures how late scheduled runs start while many other schedules are not due."""

import json
import time

from benchmarks.databases import Bare, Database
from benchmarks.processes import WorkerProcess
from benchmarks.report import Figure, at_most
from benchmarks.sizes import Sizes
from benchmarks.tasks import app, tell_lateness
from duly.core.schedule import DateTrigger, Rules, rules_text, trigger_text
from duly.store.ops.schedules import PutSchedule

GAP_SECONDS = 0.05


def measure(database: Database, sizes: Sizes) -> list[Figure]:
    """Make many schedules due at once, then some one after the other, while a worker is idle."""
    at_once = _lateness(database, sizes, gap=0.0, count=sizes.due_schedules)
    spaced = _lateness(database, sizes, gap=GAP_SECONDS, count=sizes.spaced_schedules)
    note = f"beside {sizes.schedules:,} schedules that are not due"
    p99 = spaced[min(len(spaced) - 1, len(spaced) * 99 // 100)]
    return [
        Figure(
            f"last start of {sizes.due_schedules:,} due at once",
            database.name,
            "s",
            [at_once[-1]],
            (),
            (at_most(2),),
            note,
        ),
        Figure("due to start, p99", database.name, "s", [p99], (), (at_most(1),), note),
    ]


def _lateness(database: Database, sizes: Sizes, *, gap: float, count: int) -> list[float]:
    with database.fresh() as url, database.bare(url) as bare:
        app.use_url(url)
        app.store.peek()
        bare.pile_up("schedules", sizes.schedules)
        with WorkerProcess(url) as worker:
            _put(count, gap, ahead=sizes.seconds_ahead)
            worker.wait_until(lambda: _have_ended(bare, count), "all have run")
        app.close()
        return sorted(float(json.loads(result)) for result in bare.results(tell_lateness.name))


def _put(count: int, gap: float, *, ahead: float) -> None:
    definition = tell_lateness.definition
    begin = time.time() + ahead
    ops = []
    for number in range(count):
        due = begin + number * gap
        ops.append(
            PutSchedule(
                f"due-{number}",
                "runtime",
                "the benchmark",
                definition.name,
                definition.queue,
                definition.lane,
                0,
                definition.codec.encode((due,), {}),
                trigger_text(DateTrigger(int(due * 1e6))),
                rules_text(Rules()),
            )
        )
    app.store.apply(ops)


def _have_ended(bare: Bare, count: int) -> bool:
    return len(bare.results(tell_lateness.name)) == count

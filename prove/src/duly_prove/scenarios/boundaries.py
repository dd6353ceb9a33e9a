"""SIGKILL before and after every SQL statement of a process, from its claim on.

Each statement of each thread gets a kill in a separate run, until a process completes without one.
No statement is therefore left out. A worker finishes the work of the killed processes. Then there
must be one set of rows, one child of each kind, and every step once. Below full scale, only every
n-th statement is used, from a random first one.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from duly_prove import crash_tasks
from duly_prove.faults import InjectedFault
from duly_prove.statement_sweep import StatementKill, StatementSweep, count_statements
from duly_prove.trial import Trial


def boundaries(trial: Trial, scale: float) -> None:
    """Sweep every crash task, and every process that wakes a waiting run."""
    stride = max(1, round(1 / scale))
    found: list[StatementKill] = []
    passed: Counter[str] = Counter()
    with StatementSweep(trial.url, stride=stride, random=trial.random) as sweep:
        for name, strikes in _sweeps(sweep).items():
            for struck in strikes():
                trial.report_progress(f"statements of {name}", len(found), len(found) + 1)
                found.append(struck)
                passed[name] += not struck.fate.was_killed
                trial.violations += [
                    f"{' '.join(map(str, struck.order))}: {b}" for b in struck.violations
                ]
                if struck.order.number:
                    trial.faults.append(_strike(name, struck))
    trial.facts |= {
        "every_so_many_statements": stride,
        "boundaries_struck": sum(struck.fate.was_killed for struck in found),
        "passed_without_a_strike": dict(passed),
        "rows_per_run": {
            name: len(crash_task.rows) for name, crash_task in crash_tasks.CRASH_TASKS.items()
        },
        "runs_with_other_rows": sum(bool(struck.violations) for struck in found),
        "longest_seconds_until_the_run_had_ended": round(max(s.seconds for s in found), 2),
        "statements_struck": count_statements(found),
    }


def _sweeps(sweep: StatementSweep) -> dict[str, Callable[[], Iterator[StatementKill]]]:
    works = {
        f"worker of {name}": lambda name=name: sweep.work(name) for name in crash_tasks.CRASH_TASKS
    }
    return works | {
        "sender of an event": sweep.send,
        "worker of children": sweep.complete_children,
        "promoter": sweep.tick,
    }


def _strike(name: str, struck: StatementKill) -> InjectedFault:
    target = f"{name} {struck.order.side} a statement"
    return InjectedFault("kill", target, struck.fate.pid, None, took_effect=struck.fate.was_killed)

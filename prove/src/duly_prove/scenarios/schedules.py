"""Many workers, and many schedules due at one instant: one firing and one run each.

In some of the trials, the worker that fires is killed before it writes, before it commits, or after
it has committed without a notification.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice

from duly.core.schedule import SECOND
from duly_prove import workload
from duly_prove.faults import InjectedFault, is_gone
from duly_prove.firing_crash_workload import PLAN_VARIABLE
from duly_prove.history import DueInstant
from duly_prove.process_tree import ProcessTree, wait_for
from duly_prove.trial import START_SECONDS, Trial

TRIALS = 100
DUE_AT_ONCE = 20
PROCESSES = 4
_POINTS = ("operate.before_commit", "operate.before_write", "operate.after_commit")
_KILLS_EVERY, _KILLS_AT = 4, 1
_KILLS_PER_TRIAL = 2
_LEAD_SECONDS = 0.3
"""The time to add the schedules of a trial before they are due."""
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.01


def schedules(trial: Trial, scale: float) -> None:
    """Let the same schedules become due repeatedly, under new names."""
    wanted = max(_KILLS_AT + 1, round(TRIALS * scale))
    plan = trial.folder / "firing-plan.txt"
    plan.touch()
    tree = trial.start_tree(
        app="duly_prove.firing_crash_workload:app",
        processes=PROCESSES,
        environment={PLAN_VARIABLE: str(plan)},
    )
    points = cycle(_POINTS)
    asked: Counter[str] = Counter()
    for made in range(wanted):
        trial.report_progress("trials", made, wanted)
        wait_for(lambda: _is_whole(tree), START_SECONDS, _LOOK_SECONDS)
        if made % _KILLS_EVERY == _KILLS_AT:
            deaths = list(islice(points, _KILLS_PER_TRIAL))
            plan.write_text("".join(f"{point}\n" for point in deaths))
            asked.update(deaths)
        names = _add_schedules(trial, made)
        wait_for(lambda names=names: _have_ended(trial, names), _PATIENCE_SECONDS, _LOOK_SECONDS)  # type: ignore[misc]  # bound now
        trial.drain()
    trial.wait_until_recovered()
    trial.stop_all()
    trial.faults += _deaths(trial, asked)
    trial.facts |= {
        "trials": wanted,
        "processes": PROCESSES,
        "due_at_once": DUE_AT_ONCE,
        "executions": len(trial.database.rows()),
        "deaths_by_sigkill_seen_by_supervisors": trial.kills_seen_by_supervisors(),
    }


def _is_whole(tree: ProcessTree) -> bool:
    """Return whether all processes of a tree look for due schedules."""
    return sum(child.is_registered for child in tree.children()) >= PROCESSES


def _add_schedules(trial: Trial, number: int) -> list[str]:
    instant = datetime.now(UTC) + timedelta(seconds=_LEAD_SECONDS)
    names = [f"trial:{number}:{place}" for place in range(DUE_AT_ONCE)]
    for place, name in enumerate(names):
        trial.app.schedules.add(name, workload.order, at=instant, args=(place, 5))
        trial.due.append(DueInstant(name, 1, round(instant.timestamp() * SECOND)))
    return names


def _have_ended(trial: Trial, names: list[str]) -> bool:
    """Return whether these one-time schedules have fired."""
    return all(trial.app.schedules.get(name).state == "ended" for name in reversed(names))


def _deaths(trial: Trial, asked: Counter[str]) -> Iterator[InjectedFault]:
    """Yield the processes that died as planned, and the planned deaths that did not happen.

    A death does not happen if other workers had fired everything.
    """
    left = Counter(asked)
    for point, pid in trial.observations.read_faults():
        left[point] -= 1
        # A worker records the point right before it kills itself, and must be gone afterwards.
        yield InjectedFault("kill", f"scheduler at {point}", pid, None, took_effect=is_gone(pid))
    for point in left.elements():
        yield InjectedFault("kill", f"scheduler at {point}", 0, None, took_effect=False)

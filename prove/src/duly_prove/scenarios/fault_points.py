"""SIGKILL at every fault point, in the process that passes it: worker, supervisor or producer."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from duly import faultpoints
from duly.clock import monotonic
from duly_prove.crash_workload import PLAN_VARIABLE
from duly_prove.faults import KILLED, InjectedFault, choose_child, is_gone, kill_child
from duly_prove.process_tree import ProcessTree, pause_for
from duly_prove.producer_process import start_producer
from duly_prove.supervisor_process import SUPERVISOR_POINT_VARIABLE
from duly_prove.trial import Trial

REPETITIONS = 20
_STRIKE_SECONDS = 60.0
_STUCK_SECONDS = 2.0
_LATEST_HIT = 4
_LOOK_SECONDS = 0.02
_PRODUCED = 40
_SPARES, _MOST_SPARES = 5, 40
_SUPERVISOR_VERBS = ("beat", "recover")


def fault_points(trial: Trial, scale: float) -> None:
    """Kill processes at every point several times, at the first hit or a later one."""
    repetitions = max(1, round(REPETITIONS * scale))
    trial.start_tree(processes=1)
    trial.feeder.start()
    points = [name for name in faultpoints.NAMES if not name.startswith(("enqueue", "beat"))]
    kill_workers(trial, points * repetitions)
    _kill_supervisors(trial, repetitions)
    _kill_producers(trial, repetitions)
    trial.feeder.stop()
    trial.wait_until_recovered()
    trial.stop_all()
    struck = {strike.target for strike in trial.faults if strike.took_effect}
    trial.facts["points_never_struck"] = sorted(set(faultpoints.NAMES) - _named(struck))


def kill_workers(trial: Trial, points: Sequence[str]) -> None:
    """Let workers die one after another, each at the next point of a plan."""
    wanted = Counter(points)
    file = trial.folder / "plan.txt"
    _plan(trial, file, wanted, latest_hit=_LATEST_HIT)
    doomed = trial.start_tree(
        app="duly_prove.crash_workload:app",
        processes=3,
        spares=min(_MOST_SPARES, wanted.total() + _SPARES),
        environment={PLAN_VARIABLE: str(file)},
    )
    last, until = monotonic(), monotonic() + _STRIKE_SECONDS + wanted.total()
    known = 0
    while (left := wanted - _struck(trial)) and monotonic() < until:
        made = wanted.total() - left.total()
        trial.report_progress("points in workers", made, wanted.total())
        if made > known:
            known, last = made, monotonic()
        elif monotonic() - last > _STUCK_SECONDS:
            # A worker for a single suspect may end before it reaches its point, and a rarely passed
            # point may wait for long. Plan the remaining points again, for new workers, each at its
            # first hit.
            _plan(trial, file, left, latest_hit=1)
            for child in doomed.children():
                if child.is_registered:
                    kill_child(doomed, child)
            last = monotonic()
        pause_for(_LOOK_SECONDS)
    trial.trees.remove(doomed)
    doomed.end()
    # A worker records the point right before it kills itself, and must be gone afterwards.
    trial.faults += [
        InjectedFault("kill", f"worker at {point}", pid, None, took_effect=is_gone(pid))
        for point, pid in trial.observations.read_faults()
    ]


def _plan(trial: Trial, file: Path, wanted: Counter[str], *, latest_hit: int) -> None:
    plan = [f"{name}@{trial.random.randint(1, latest_hit)}" for name in wanted.elements()]
    trial.random.shuffle(plan)
    file.write_text("".join(f"{line}\n" for line in plan))


def _struck(trial: Trial) -> Counter[str]:
    return Counter(point for point, _pid in trial.observations.read_faults())


def _kill_supervisors(trial: Trial, repetitions: int) -> None:
    points = [name for name in faultpoints.NAMES if name.startswith(_SUPERVISOR_VERBS)]
    for made, name in enumerate(points * repetitions):
        trial.report_progress("points in supervisors", made, len(points) * repetitions)
        point = f"{name}@{trial.random.randint(1, 3 if name.startswith('beat') else 1)}"
        tree = trial.start_tree(processes=1, environment={SUPERVISOR_POINT_VARIABLE: point})
        if name.startswith("recover"):
            _leave_a_dead_worker(trial, tree)
        status = tree.wait(_STRIKE_SECONDS)
        trial.faults.append(
            InjectedFault(
                "kill", f"supervisor at {name}", tree.pid, None, took_effect=status == KILLED
            )
        )
        trial.trees.remove(tree)
        tree.end()


def _leave_a_dead_worker(trial: Trial, tree: ProcessTree) -> None:
    while tree.is_running:
        child = choose_child(tree, trial.random)
        if child is not None:
            kill_child(tree, child)
            return
        pause_for(_LOOK_SECONDS)


def _kill_producers(trial: Trial, repetitions: int) -> None:
    points = [name for name in faultpoints.NAMES if name.startswith("enqueue")]
    for made, name in enumerate(points * repetitions):
        trial.report_progress("points in producers", made, len(points) * repetitions)
        point = f"{name}@{trial.random.randint(1, _PRODUCED // 2)}"
        producer = start_producer(trial.starter, trial.url, trial.folder, point, _PRODUCED)
        status = producer.wait(_STRIKE_SECONDS)
        trial.faults.append(
            InjectedFault(
                "kill", f"producer at {name}", producer.pid, None, took_effect=status == KILLED
            )
        )


def _named(targets: set[str]) -> set[str]:
    return {target.partition(" at ")[2] for target in targets}

"""SIGKILL at every fault point, in the process that passes it: worker, keeper or producer."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from duly import faultpoints
from duly.clock import monotonic
from duly.prove.doomed import PLAN_VARIABLE
from duly.prove.keeping import KEEPER_POINT_VARIABLE
from duly.prove.producing import start_producer
from duly.prove.strikes import KILLED, Strike, choose_child, is_gone, kill_child
from duly.prove.trees import Tree, pause_for
from duly.prove.trial import Trial

REPETITIONS = 20
_STRIKE_SECONDS = 60.0
_STUCK_SECONDS = 2.0
_LATEST_HIT = 4
_LOOK_SECONDS = 0.02
_PRODUCED = 40
_SPARES, _MOST_SPARES = 5, 40
_KEEPER_VERBS = ("beat", "recover")


def fault_points(trial: Trial, scale: float) -> None:
    """Strike at every point some times each, at the first hit or a later one."""
    repetitions = max(1, round(REPETITIONS * scale))
    trial.start_tree(processes=1)
    trial.feeder.start()
    points = [name for name in faultpoints.NAMES if not name.startswith(("enqueue", "beat"))]
    strike_workers(trial, points * repetitions)
    _strike_keepers(trial, repetitions)
    _strike_producers(trial, repetitions)
    trial.feeder.stop()
    trial.settle_down()
    trial.stop_trees()
    struck = {strike.target for strike in trial.strikes if strike.struck}
    trial.facts["points_never_struck"] = sorted(set(faultpoints.NAMES) - _named(struck))


def strike_workers(trial: Trial, points: Sequence[str]) -> None:
    """Let workers die one after the other, each at the next point of a plan."""
    wanted = Counter(points)
    file = trial.folder / "plan.txt"
    _plan(trial, file, wanted, latest_hit=_LATEST_HIT)
    doomed = trial.start_tree(
        app="duly.prove.doomed:app",
        processes=3,
        spares=min(_MOST_SPARES, wanted.total() + _SPARES),
        environment={PLAN_VARIABLE: str(file)},
    )
    last, until = monotonic(), monotonic() + _STRIKE_SECONDS + wanted.total()
    known = 0
    while (left := wanted - _struck(trial)) and monotonic() < until:
        made = wanted.total() - left.total()
        trial.tell("points in workers", made, wanted.total())
        if made > known:
            known, last = made, monotonic()
        elif monotonic() - last > _STUCK_SECONDS:
            # A worker for a single suspect may end before it comes to its point, and a point that
            # is rarely passed may wait for long: deal the rest out again, to new workers, each
            # for the first time that it comes there.
            _plan(trial, file, left, latest_hit=1)
            for child in doomed.children():
                if child.is_registered:
                    kill_child(doomed, child)
            last = monotonic()
        pause_for(_LOOK_SECONDS)
    trial.trees.remove(doomed)
    doomed.end()
    # A worker notes the point right before it kills itself, and has to be gone then.
    trial.strikes += [
        Strike("kill", f"worker at {point}", pid, None, struck=is_gone(pid))
        for point, pid in trial.journal.read_struck()
    ]


def _plan(trial: Trial, file: Path, wanted: Counter[str], *, latest_hit: int) -> None:
    plan = [f"{name}@{trial.random.randint(1, latest_hit)}" for name in wanted.elements()]
    trial.random.shuffle(plan)
    file.write_text("".join(f"{line}\n" for line in plan))


def _struck(trial: Trial) -> Counter[str]:
    return Counter(point for point, _pid in trial.journal.read_struck())


def _strike_keepers(trial: Trial, repetitions: int) -> None:
    points = [name for name in faultpoints.NAMES if name.startswith(_KEEPER_VERBS)]
    for made, name in enumerate(points * repetitions):
        trial.tell("points in keepers", made, len(points) * repetitions)
        point = f"{name}@{trial.random.randint(1, 3 if name.startswith('beat') else 1)}"
        tree = trial.start_tree(processes=1, environment={KEEPER_POINT_VARIABLE: point})
        if name.startswith("recover"):
            _give_it_something_to_recover(trial, tree)
        status = tree.wait(_STRIKE_SECONDS)
        trial.strikes.append(
            Strike("kill", f"keeper at {name}", tree.pid, None, struck=status == KILLED)
        )
        trial.trees.remove(tree)
        tree.end()


def _give_it_something_to_recover(trial: Trial, tree: Tree) -> None:
    while tree.is_running:
        child = choose_child(tree, trial.random)
        if child is not None:
            kill_child(tree, child)
            return
        pause_for(_LOOK_SECONDS)


def _strike_producers(trial: Trial, repetitions: int) -> None:
    points = [name for name in faultpoints.NAMES if name.startswith("enqueue")]
    for made, name in enumerate(points * repetitions):
        trial.tell("points in producers", made, len(points) * repetitions)
        point = f"{name}@{trial.random.randint(1, _PRODUCED // 2)}"
        producer = start_producer(trial.starter, trial.url, trial.folder, point, _PRODUCED)
        status = producer.wait(_STRIKE_SECONDS)
        trial.strikes.append(
            Strike("kill", f"producer at {name}", producer.pid, None, struck=status == KILLED)
        )


def _named(targets: set[str]) -> set[str]:
    return {target.partition(" at ")[2] for target in targets}

"""SIGKILL at every fault point, in the process that passes it: worker, keeper or producer."""

from duly import faultpoints
from duly.prove.doomed import PLAN_VARIABLE
from duly.prove.keeping import KEEPER_POINT_VARIABLE
from duly.prove.producing import start_producer
from duly.prove.strikes import KILLED, Strike, choose_child, kill_child
from duly.prove.trees import Tree, pause_for, wait_for
from duly.prove.trial import Trial

REPETITIONS = 20
_STRIKE_SECONDS = 60.0
_LOOK_SECONDS = 0.02
_PRODUCED = 40
_KEEPER_VERBS = ("beat", "recover")


def fault_points(trial: Trial, scale: float) -> None:
    """Strike at every point some times each, at the first hit or a later one."""
    repetitions = max(1, round(REPETITIONS * scale))
    trial.start_tree(processes=1)
    trial.feeder.start()
    _strike_workers(trial, repetitions)
    _strike_keepers(trial, repetitions)
    _strike_producers(trial, repetitions)
    trial.feeder.stop()
    trial.settle_down()
    trial.stop_trees()
    struck = {strike.target for strike in trial.strikes if strike.struck}
    trial.facts["points_never_struck"] = sorted(set(faultpoints.NAMES) - _named(struck))


def _strike_workers(trial: Trial, repetitions: int) -> None:
    """Workers die one after the other, each at the next point of a plan."""
    points = [name for name in faultpoints.NAMES if not name.startswith(("enqueue", "beat"))]
    plan = [f"{name}@{trial.random.randint(1, 4)}" for name in points * repetitions]
    trial.random.shuffle(plan)
    file = trial.folder / "plan.txt"
    file.write_text("".join(f"{line}\n" for line in plan))
    doomed = trial.start_tree(
        app="duly.prove.doomed:app", processes=3, environment={PLAN_VARIABLE: str(file)}
    )

    def struck() -> int:
        return len(trial.journal.read_struck())

    def is_done() -> bool:
        trial.tell("points in workers", struck(), len(plan))
        return struck() >= len(plan) or not doomed.is_running

    wait_for(is_done, _STRIKE_SECONDS + len(plan) * 0.5, _LOOK_SECONDS)
    trial.trees.remove(doomed)
    doomed.end()
    # A worker notes the point before it kills itself; the keeper has seen by waitpid that it did.
    trial.strikes += [
        Strike("kill", f"worker at {point}", pid, None, struck=True)
        for point, pid in trial.journal.read_struck()
    ]


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
        producer = start_producer(trial.url, trial.folder, point, _PRODUCED)
        status = producer.wait(_STRIKE_SECONDS)
        trial.strikes.append(
            Strike("kill", f"producer at {name}", producer.pid, None, struck=status == KILLED)
        )


def _named(targets: set[str]) -> set[str]:
    return {target.partition(" at ")[2] for target in targets}

"""SIGKILL of random worker processes and whole trees, while every kind of task runs."""

from duly_prove.faults import choose_child, kill_child, kill_tree
from duly_prove.process_tree import pause_for
from duly_prove.trial import Trial, is_working

KILLS = 1_000
_TREES, _TREES_FOR_FEW = 3, 2
_FEW = 50
_SPARES, _MOST_SPARES = 8, 40
_TREE_SHARE = 0.06
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.3
_LOOK_SECONDS = 0.01


def kills(trial: Trial, scale: float) -> None:
    """Kill processes until enough kills took effect."""
    wanted = max(1, round(KILLS * scale))
    trees = _TREES_FOR_FEW if wanted <= _FEW else _TREES
    for _ in range(trees):
        trial.start_tree(spares=min(_MOST_SPARES, wanted // trees + _SPARES))
    trial.feeder.start()
    trial.wait_until_working()
    while (made := sum(strike.took_effect for strike in trial.faults)) < wanted:
        trial.report_progress("kills", made, wanted)
        tree = trial.random.choice(trial.trees)
        child = choose_child(tree, trial.random)
        if child is None:
            pause_for(_LOOK_SECONDS)
            continue
        if trial.random.random() < _TREE_SHARE and sum(map(is_working, trial.trees)) > 1:
            trial.faults.append(kill_tree(tree))
            trial.replace(tree)
        else:
            trial.faults.append(kill_child(tree, child))
        pause_for(trial.random.uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE))
    trial.feeder.stop()
    trial.wait_until_recovered()
    trial.stop_all()
    trial.facts["deaths_by_sigkill_seen_by_supervisors"] = trial.kills_seen_by_supervisors()

"""SIGSTOP past the lease, then SIGCONT: of workers, supervisors, both, and of late writers."""

from functools import partial
from itertools import cycle

from duly.clock import monotonic
from duly_prove.faults import EMBEDDED, FREEZES, ActiveFreeze, freeze, freeze_embedded, thaw
from duly_prove.feeder import everything_and_long_bodies
from duly_prove.process_tree import ProcessTree, pause_for
from duly_prove.trial import Trial, is_working

FREEZE_COUNT = 200
_TREES = 5
_AT_ONCE = 3
_PAST_THE_LEASE = 1.4
_PATIENCE_SECONDS = 20.0
_MORE = 20
_MOST_TIMES = 3
_LOOK_SECONDS = 0.02


def freezes(trial: Trial, scale: float) -> None:
    """Freeze until enough processes were seen frozen past their lease.

    If the fence has refused nothing by then, more processes are frozen, up to three times as many.
    """
    wanted = max(len(FREEZES), round(FREEZE_COUNT * scale))
    most = _MOST_TIMES * wanted
    lease = trial.settings.lease
    trial.use_mix(
        partial(everything_and_long_bodies, duration_factor=trial.duration_factor), backlog=60
    )
    for _ in range(_TREES):
        trial.start_tree(processes=1, app="duly_prove.freeze_workload:app")
    trial.start_embedded()
    trial.feeder.start()
    trial.wait_until_working()
    kinds = cycle(FREEZES)
    kind = next(kinds)
    under_way: list[ActiveFreeze] = []
    while len(trial.faults) < wanted or under_way:
        trial.report_progress("freezes", len(trial.faults), wanted)
        for due in [one for one in under_way if _is_due(trial, one)]:
            under_way.remove(due)
            _end(trial, due)
        if len(under_way) < _AT_ONCE and len(trial.faults) + len(under_way) < wanted:
            seconds = lease * _PAST_THE_LEASE + trial.random.uniform(0.0, 0.4)
            begun = _begin(trial, kind, [one.tree for one in under_way], seconds)
            if begun is not None:
                under_way.append(begun)
                kind = next(kinds)
        pause_for(_LOOK_SECONDS)
        if wanted == len(trial.faults) < most and not any(trial.observations.read_late_writes()):
            wanted = min(most, wanted + len(FREEZES))
    trial.feeder.stop()
    trial.wait_until_recovered()
    trial.stop_all()
    _report_late_writers(trial)


def _begin(
    trial: Trial, kind: str, frozen: list[ProcessTree], seconds: float
) -> ActiveFreeze | None:
    if kind == EMBEDDED:
        return _begin_in_program(trial, frozen, seconds)
    tree = _choose(trial, frozen)
    return None if tree is None else freeze(tree, kind, seconds, trial.random)


def _begin_in_program(
    trial: Trial, frozen: list[ProcessTree], seconds: float
) -> ActiveFreeze | None:
    (program,) = trial.embedded
    if program in frozen:
        return None
    begun = freeze_embedded(program, seconds)
    if begun is None:
        # It had nothing to settle because others are faster. Add more runs than they can hold.
        trial.feeder.enqueue(_MORE)
    return begun


def _choose(trial: Trial, frozen: list[ProcessTree]) -> ProcessTree | None:
    free = [tree for tree in trial.trees if tree not in frozen and is_working(tree)]
    # Another tree must be able to take over the runs of the frozen ones.
    return trial.random.choice(free) if len(free) > 1 else None


def _is_due(trial: Trial, one: ActiveFreeze) -> bool:
    """Return whether a frozen process should continue. A program must have lost its claims first.

    The other workers may be too young, or may have continued too recently, to declare it dead when
    its lease expires. Then the fence would have nothing to refuse.
    """
    late = monotonic() - one.thaw_at
    if late < 0 or one.target != EMBEDDED:
        return late >= 0
    return not trial.database.has_live_worker(one.tree.pid) or late > _PATIENCE_SECONDS


def _end(trial: Trial, due: ActiveFreeze) -> None:
    strike, freezes = thaw(due, trial.random)
    trial.faults.append(strike)
    trial.freezes += freezes


def _report_late_writers(trial: Trial) -> None:
    """Record what frozen workers lost while frozen, and what they tried to write afterwards."""
    frozen = {strike.worker_id for strike in trial.faults if strike.worker_id}
    states = {worker_id: state for worker_id, state, _pid in trial.database.workers()}
    late = trial.observations.read_late_writes()
    trial.facts |= {
        "frozen_workers": len(frozen),
        "frozen_workers_declared_dead": sum(states.get(name) == "dead" for name in frozen),
        "claims_taken_from_frozen_workers": sum(
            attempt.outcome == "lost" and attempt.worker_id in frozen
            for attempt in trial.database.attempts()
        ),
        "settles_that_came_late": len(late),
        "late_writes_refused_by_the_fence": sum(late),
    }
    if not sum(late):
        trial.violations.append("the fence refused nothing, so this run proves nothing about it")

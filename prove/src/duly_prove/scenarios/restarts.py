"""Rolling restarts by SIGTERM under load. No run may be lost or charged for a crash."""

import signal

from duly_prove.faults import InjectedFault
from duly_prove.process_tree import pause_for, wait_for
from duly_prove.trial import Trial, is_working

RESTARTS = 100
_TREES = 2
_SETTINGS = {"processes": 1, "lease": 15.0, "beat": 2.0, "grace": 15.0}
_STOP_SECONDS = 40.0
_START_SECONDS = 60.0


def restarts(trial: Trial, scale: float) -> None:
    """Stop one tree after another, each time starting its successor first."""
    wanted = max(2, round(RESTARTS * scale))
    trial.crash_charges_allowed = False
    for _ in range(_TREES):
        trial.start_tree(**_SETTINGS)
    trial.feeder.start()
    trial.wait_until_working()
    for made in range(wanted):
        trial.report_progress("restarts", made, wanted)
        old = trial.trees[0]
        new = trial.start_tree(**_SETTINGS)
        wait_for(lambda new=new: is_working(new), _START_SECONDS)  # type: ignore[misc]  # bound now
        pause_for(trial.random.uniform(0.0, 0.1))
        old.signal_supervisor(signal.SIGTERM)
        status = old.wait(_STOP_SECONDS)
        trial.faults.append(InjectedFault("term", "tree", old.pid, None, took_effect=status == 0))
        trial.trees.remove(old)
        if status is None:
            old.end()
    trial.feeder.stop()
    trial.wait_until_recovered()
    trial.stop_all()

"""Thousands of dead letters, retried once each by two concurrent processes at a set rate."""

import json
from collections import Counter

from duly_prove import workload
from duly_prove.faults import KILLED, InjectedFault
from duly_prove.retry_process import start_retry_process
from duly_prove.trial import Trial

DEAD_LETTERS = 10_000
RATE = 500.0
"""Dead letters per second and process."""
_SECONDS = 120.0
_FEED = 1_000


def dead_letters(trial: Trial, scale: float) -> None:
    """Let all runs fail once, retry them from two processes, and count what ran again."""
    wanted = max(20, round(DEAD_LETTERS * scale))
    trial.use_mix(lambda number, _random: workload.fragile.call(number), backlog=0)
    trial.start_tree(processes=2, async_limit=200, lease=6.0, beat=1.0)
    trial.wait_until_working()
    for done in range(0, wanted, _FEED):
        trial.report_progress("failing", done, wanted)
        trial.feeder.enqueue(min(_FEED, wanted - done))
    trial.drain()
    failed = [run for run in trial.database.runs() if run.state == "failed"]
    trial.facts["failed"] = len(failed)
    _kill_one_retrier(trial, wanted)
    _retry_twice(trial)
    trial.drain()
    trial.stop_all()
    trial.violations += _not_retried_once(trial)


def _kill_one_retrier(trial: Trial, wanted: int) -> None:
    """Kill a retry process midway. It must have retried some runs once, and the others never."""
    trial.report_progress("retrying", 0, wanted)
    point = trial.random.choice(["operate.before_commit", "operate.after_commit"])
    retrier = start_retry_process(trial.starter, trial.url, trial.folder, RATE, f"{point}@2")
    retrier.communicate(timeout=_SECONDS)
    struck = retrier.poll() == KILLED
    trial.faults.append(
        InjectedFault("kill", f"retry process at {point}", retrier.pid, None, struck)
    )
    trial.facts["redriven_before_the_kill"] = len(trial.database.retries())


def _retry_twice(trial: Trial) -> None:
    retriers = [start_retry_process(trial.starter, trial.url, trial.folder, RATE) for _ in range(2)]
    answers = []
    for retrier in retriers:
        printed, _ = retrier.communicate(timeout=_SECONDS)
        answers.append(json.loads(printed))
    trial.facts |= {
        "redriven_by_each": [done for done, _skipped, _seconds in answers],
        "found_redriven_by_the_other": [skipped for _done, skipped, _seconds in answers],
        "rate_asked": RATE,
        "rate_measured": [
            round((done + skipped) / seconds, 1) for done, skipped, seconds in answers
        ],
    }


def _not_retried_once(trial: Trial) -> list[str]:
    """Return the runs not retried exactly once, by their effects and audit entries."""
    acts = trial.database.retries()
    bodies = Counter((e.run_id, e.generation) for e in trial.observations.read_effects())
    found = []
    for run in trial.database.runs():
        times = (acts.get(run.run_id, 0), bodies[run.run_id, 1], bodies[run.run_id, 2])
        if times != (1, 1, 1) or (run.state, run.generation) != ("succeeded", 2):
            found.append(
                f"run {run.run_id} is {run.state} in generation {run.generation}; it was retried "
                f"{times[0]} times, ran {times[1]} times before and {times[2]} after"
            )
    rates = trial.facts["rate_measured"]
    if any(rate > RATE * 1.1 for rate in rates):
        found.append(f"dead letters were retried at {rates} per second, not at {RATE}")
    return found

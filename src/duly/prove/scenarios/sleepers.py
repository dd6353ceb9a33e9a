"""Ten thousand runs that sleep at once: they cost no thread, no claim and no attempt."""

import threading
from typing import NamedTuple

from duly.clock import MICROSECONDS, monotonic
from duly.prove.errands import SLEEPERS, app, count_sleepers, doze
from duly.prove.strikes import Strike
from duly.prove.trees import wait_for
from duly.prove.trial import Trial

RUNS = 10_000
_SECONDS = 300.0
_LOOK_SECONDS = 0.05
_A_SECOND = 200
"""So many fall asleep in a second on a machine that has other things to do as well."""


class Slept(NamedTuple):
    """What it cost that runs slept, and how they ended."""

    threads_before: int
    threads_meanwhile: int
    meanwhile: dict[tuple[str, int], int]
    afterwards: dict[tuple[str, int], int]
    seconds_to_fall_asleep: float
    seconds_to_end: float
    """From the instant that all of them slept to."""


def sleepers(trial: Trial, scale: float) -> None:
    """Let runs sleep until one instant, and look what they cost meanwhile."""
    wanted = max(10, round(RUNS * scale))
    app.use_url(trial.url)
    trial.tell("sleepers", 0, wanted)
    slept = let_sleep(wanted)
    app.close()
    trial.broken += broken_sleep(slept, wanted)
    trial.strikes.append(Strike("sleep", "of all runs at once", 0, None, struck=True))
    trial.facts |= {
        "sleepers": wanted,
        "threads_before_and_meanwhile": [slept.threads_before, slept.threads_meanwhile],
        "asleep_at_once": slept.meanwhile.get(("queued", 1), 0),
        "succeeded_at_their_first_attempt": slept.afterwards.get(("succeeded", 1), 0),
        "seconds_to_fall_asleep": round(slept.seconds_to_fall_asleep, 1),
        "seconds_until_the_last_had_ended": round(slept.seconds_to_end, 1),
    }


def let_sleep(wanted: int) -> Slept:
    """Run them on one worker of this process."""
    with app.worker(queues=SLEEPERS):
        # What a worker starts when it first needs it is there before the count begins.
        doze.enqueue(app.store.now() + MICROSECONDS // 10).result(_SECONDS)
        threads_before = threading.active_count()
        began_at = monotonic()
        bed_seconds = 2 + wanted / _A_SECOND
        until = app.store.now() + int(bed_seconds * MICROSECONDS)
        app.enqueue_many(doze.call(until) for _ in range(wanted))
        wait_for(_all_asleep, bed_seconds, _LOOK_SECONDS)
        asleep_at = monotonic()
        # In this order: counting runs has a timer, which is a thread.
        threads_meanwhile, meanwhile = threading.active_count(), count_sleepers()
        wait_for(lambda: _is_over(wanted + 1), _SECONDS, _LOOK_SECONDS)
        ended_at = monotonic()
    return Slept(
        threads_before,
        threads_meanwhile,
        meanwhile,
        count_sleepers(),
        asleep_at - began_at,
        ended_at - began_at - bed_seconds,
    )


def broken_sleep(slept: Slept, wanted: int) -> list[str]:
    """Say what sleeping has cost that it must not cost."""
    found = []
    if slept.threads_meanwhile > slept.threads_before:
        found.append(f"{slept.threads_meanwhile} threads, and {slept.threads_before} before")
    if slept.meanwhile != {("queued", 1): wanted, ("succeeded", 1): 1}:
        found.append(f"while all should have slept: {slept.meanwhile}")
    if slept.afterwards != {("succeeded", 1): wanted + 1}:
        found.append(f"afterwards: {slept.afterwards}")
    return found


def _all_asleep() -> bool:
    """Nothing is ready, nothing runs: what is left waits for its time."""
    return not any(queue.ready or queue.running for queue in app.queues.list())


def _is_over(wanted: int) -> bool:
    return count_sleepers().get(("succeeded", 1), 0) >= wanted

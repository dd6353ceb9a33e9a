"""Ten thousand runs sleep at once. They use no thread, no claim and no attempt."""

import threading
from typing import NamedTuple

from duly.clock import MICROSECONDS, monotonic
from duly_prove.crash_tasks import SLEEPERS, app, count_sleepers, sleep_until
from duly_prove.process_tree import wait_for
from duly_prove.trial import Trial

RUNS = 10_000
_SECONDS = 300.0
_LOOK_SECONDS = 0.02
_FIRST_SHARE = 10
"""The divisor for the number of first runs, which show how long the others need to fall asleep."""
_OF_WRITES = frozenset({"duly-work", "duly-sweep"})
"""PostgreSQL threads: one for callers that enqueue many runs, one that cleans up after writes."""
_PATIENCE = (3, 9, 27)
"""How many times longer than expected runs may take to fall asleep.

If the machine becomes busy and the first runs wake before the last one sleeps, the next number is
tried.
"""


class SleepMeasurement(NamedTuple):
    """The cost of sleeping runs, and their final states."""

    ended_before: int
    """How many other runs had ended before these fell asleep."""
    threads_before: int
    threads_meanwhile: int
    meanwhile: dict[tuple[str, int], int]
    afterwards: dict[tuple[str, int], int]
    seconds_to_fall_asleep: float
    seconds_to_end: float
    """From the instant until which all of them slept."""


def sleepers(trial: Trial, scale: float) -> None:
    """Let runs sleep until one instant, and measure their cost during that time."""
    wanted = max(10, round(RUNS * scale))
    app.use_url(trial.url)
    trial.report_progress("sleepers", 0, wanted)
    slept = let_sleep(wanted)
    app.close()
    trial.violations += broken_sleep(slept, wanted)
    trial.facts |= {
        "sleepers": wanted,
        "threads_before_and_meanwhile": [slept.threads_before, slept.threads_meanwhile],
        "asleep_at_once": slept.meanwhile.get(("queued", 1), 0),
        "succeeded_at_their_first_attempt": slept.afterwards.get(("succeeded", 1), 0)
        - slept.ended_before,
        "seconds_to_fall_asleep": round(slept.seconds_to_fall_asleep, 1),
        "seconds_until_the_last_had_ended": round(slept.seconds_to_end, 1),
    }


def let_sleep(wanted: int) -> SleepMeasurement:
    """Run the sleepers on one worker of this process."""
    first = first_of(wanted)
    with app.worker(queues=SLEEPERS):
        # Run one first, so that the following measurement excludes the worker's start.
        _start_sleepers(1, 1.0)
        began_at = monotonic()
        _start_sleepers(first - 1, 1.0)
        each_seconds = (monotonic() - began_at) / (first - 1)
        wait_for(lambda: _have_all_ended(first), _SECONDS, _LOOK_SECONDS)
        # By now the worker has started the threads that it starts on first use.
        threads_before = _count_threads()
        ended_before = first
        for patience in _PATIENCE[:-1]:
            slept = _sleep_once(wanted, ended_before, 1.0 + patience * wanted * each_seconds)
            if slept.meanwhile.get(("queued", 1), 0) == wanted:
                return slept._replace(threads_before=threads_before)
            ended_before += wanted
        longest = 1.0 + _PATIENCE[-1] * wanted * each_seconds
        slept = _sleep_once(wanted, ended_before, longest)
        return slept._replace(threads_before=threads_before)


def _sleep_once(wanted: int, ended_before: int, bed_seconds: float) -> SleepMeasurement:
    began_at = monotonic()
    _start_sleepers(wanted, bed_seconds)
    asleep_at = monotonic()
    # In this order, because counting runs starts a timer thread.
    threads_meanwhile, meanwhile = _count_threads(), count_sleepers()
    wait_for(lambda: _have_all_ended(ended_before + wanted), _SECONDS, _LOOK_SECONDS)
    ended_at = monotonic()
    return SleepMeasurement(
        ended_before,
        0,
        threads_meanwhile,
        meanwhile,
        count_sleepers(),
        asleep_at - began_at,
        ended_at - began_at - bed_seconds,
    )


def broken_sleep(slept: SleepMeasurement, wanted: int) -> list[str]:
    """Return the costs of sleeping that are not allowed."""
    found = []
    if slept.threads_meanwhile > slept.threads_before:
        found.append(f"{slept.threads_meanwhile} threads, and {slept.threads_before} before")
    before = slept.ended_before
    if slept.meanwhile != {("queued", 1): wanted, ("succeeded", 1): before}:
        found.append(f"while all should have slept: {slept.meanwhile}")
    if slept.afterwards != {("succeeded", 1): before + wanted}:
        found.append(f"afterwards: {slept.afterwards}")
    return found


def first_of(wanted: int) -> int:
    """Return how many runs start first."""
    return 1 + max(1, wanted // _FIRST_SHARE)


def _count_threads() -> int:
    """Return the number of threads, without those that many writes cause."""
    return sum(thread.name not in _OF_WRITES for thread in threading.enumerate())


def _start_sleepers(runs: int, seconds: float) -> None:
    """Let runs sleep until this many seconds from now, and wait until all of them do."""
    until = app.store.now() + int(seconds * MICROSECONDS)
    app.enqueue_many(sleep_until.call(until) for _ in range(runs))
    wait_for(_all_asleep, seconds, _LOOK_SECONDS)


def _all_asleep() -> bool:
    """Return whether nothing is ready or running, so that all remaining runs are waiting."""
    return not any(queue.ready or queue.running for queue in app.queues.list())


def _have_all_ended(wanted: int) -> bool:
    return count_sleepers().get(("succeeded", 1), 0) >= wanted

"""Kill processes that carry duly's runs while they run tasks, until enough have been killed."""

import os
import random
import signal
import time
from contextlib import suppress
from typing import Any

from tests.integrations.counter import EffectCounter
from tests.integrations.evidence import KILLS, SECONDS

CRASH_LIMIT = 3


def kill_carriers(tasks: Any, counter: EffectCounter, *, kills: int = KILLS) -> dict[str, Any]:
    """Enqueue runs and repeatedly kill the process that runs one. Return the outcome."""
    chance = random.Random(1)  # noqa: S311 - repeatable
    count = 2 * kills
    runs = [tasks.pay.enqueue(number, counter.port) for number in range(count)]
    killed: dict[int, str] = {}
    deadline = time.monotonic() + SECONDS / 2
    while len(killed) < kills and time.monotonic() < deadline:
        struck = list(killed.values())
        # A run whose worker was killed three times is correctly given up.
        at_work = {
            pid: order
            for pid, order in counter.at_work().items()
            if pid not in killed and struck.count(order) < CRASH_LIMIT - 1
        }
        if at_work:
            victim = chance.choice(sorted(at_work))
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                killed[victim] = at_work[victim]
        time.sleep(chance.uniform(0.02, 0.2))
    results = [run.result(timeout=SECONDS / 2) for run in runs]
    outcomes = [[attempt.outcome for attempt in run.refresh().attempts()] for run in runs]
    begun, ended = counter.count("began").total(), counter.count("ended")
    broken = [f"run {number} never ended" for number in range(count) if not ended[str(number)]]
    broken += [f"{each}" for each in outcomes if each[-1] != "returned" or "raised" in each]
    if results != list(range(count)):
        broken.append(f"results: {results}")
    if begun > count + len(killed):
        broken.append(f"{begun} bodies began for {count} runs and {len(killed)} kills")
    return {
        "runs": count,
        "kills": len(killed),
        "succeeded": len(results),
        "attempts_lost": sum(each.count("lost") for each in outcomes),
        "bodies_begun": begun,
        "bodies_ended": ended.total(),
        "broken": broken,
    }

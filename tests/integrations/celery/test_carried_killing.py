"""Pool children that carry duly's runs, killed with -9: no run is lost, and all of them succeed."""

import os
import random
import signal
import time

import pytest

from tests.integrations.proving import KILLS, SECONDS, keep

pytestmark = [pytest.mark.process, pytest.mark.timeout(SECONDS)]

RUNS = 2 * KILLS
CRASH_LIMIT = 3


def test_killed_children_lose_no_run(tasks, start_worker, counter, store_kind):
    chance = random.Random(1)  # noqa: S311 - repeatable
    worker = start_worker("--concurrency", "3")
    runs = [tasks.pay.enqueue(number, counter.port) for number in range(RUNS)]
    killed: dict[int, str] = {}
    struck: dict[str, int] = {}
    deadline = time.monotonic() + SECONDS / 2
    while len(killed) < KILLS and time.monotonic() < deadline:
        # Killed three times, a run is a suspect, and right to be given up.
        at_work = {
            pid: order
            for pid, order in counter.at_work().items()
            if pid not in killed and struck.get(order, 0) < CRASH_LIMIT - 1
        }
        if at_work:
            victim = chance.choice(sorted(at_work))
            os.kill(victim, signal.SIGKILL)
            killed[victim] = at_work[victim]
            struck[at_work[victim]] = struck.get(at_work[victim], 0) + 1
        time.sleep(chance.uniform(0.02, 0.2))

    results = [run.result(timeout=SECONDS / 2) for run in runs]

    outcomes = [[attempt.outcome for attempt in run.refresh().attempts()] for run in runs]
    ended = counter.count("ended")
    lost = sum(each.count("lost") for each in outcomes)
    broken = [f"run {number}" for number in range(RUNS) if not ended[str(number)]]
    broken += [f"{each}" for each in outcomes if each[-1] != "returned" or "raised" in each]
    document = {
        "runs": RUNS,
        "kills": len(killed),
        "succeeded": len(results),
        "attempts_lost": lost,
        "bodies_begun": counter.count("began").total(),
        "bodies_ended": ended.total(),
        "broken": broken,
    }
    keep("celery-carried-kills", store_kind, document, "celery", "kombu", "redis")
    assert broken == []
    assert results == list(range(RUNS))
    assert len(killed) == KILLS
    assert 1 <= lost <= KILLS
    assert worker.is_alive()

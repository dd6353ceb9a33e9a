"""Work-horses that carry duly's runs, killed with -9: no run is lost, and all of them succeed."""

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from tests.integrations.proving import KILLS, SECONDS, WHERE, keep

pytestmark = [pytest.mark.process, pytest.mark.timeout(SECONDS)]

RUNS = 2 * KILLS
CRASH_LIMIT = 3


@pytest.mark.usefixtures("handing_over")
@WHERE
def test_killed_work_horses_lose_no_run(tasks, start_worker, counter, store_kind):
    chance = random.Random(1)  # noqa: S311 - repeatable
    workers = [start_worker(), start_worker()]
    runs = [tasks.pay.enqueue(number, counter.port) for number in range(RUNS)]
    killed: dict[int, str] = {}
    deadline = time.monotonic() + SECONDS / 2
    while len(killed) < KILLS and time.monotonic() < deadline:
        struck = list(killed.values())
        # Killed three times, a run is a suspect, and right to be given up.
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
    keep("rq-carried-kills", store_kind, document, "rq", "redis")
    assert broken == []
    assert results == list(range(RUNS))
    assert len(killed) == KILLS
    assert 1 <= lost <= KILLS
    assert all(worker.is_alive() for worker in workers)

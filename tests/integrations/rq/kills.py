"""Kill work-horses with SIGKILL while they run jobs, until enough have been killed."""

import os
import random
import signal
import time
from contextlib import suppress
from typing import Any

from rq.job import JobStatus

from tests.integrations.counter import EffectCounter
from tests.integrations.killed import Killed
from tests.servers.processes import wait_until

_WORKERS = 2
_ORDERS_PER_KILL = 2
_FINAL = (JobStatus.FINISHED, JobStatus.FAILED)


def kill_horses(shop: Any, counter: EffectCounter, *, kills: int, seed: int) -> Killed:
    """Send each order twice, and repeatedly kill the work-horse that runs one."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    outcome = Killed(orders=kills * _ORDERS_PER_KILL)
    for _ in range(_WORKERS):
        shop.worker()
    # RQ fails the job of a killed work-horse unless the job has retries.
    sent = [
        (order, shop.send(shop.tasks.pay, order, retries=kills + 1))
        for order in range(outcome.orders)
        for _ in range(2)
    ]
    victims: set[int] = set()
    deadline = time.monotonic() + 60 + 3 * kills
    while outcome.kills < kills and time.monotonic() < deadline:
        at_work = counter.at_work().keys() - victims
        if at_work:
            victim = chance.choice(sorted(at_work))
            victims.add(victim)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                outcome.strikes += 1
                outcome.kills += victim in counter.at_work()
        time.sleep(chance.uniform(0.02, 0.3))
    wait_until(
        lambda: all(job.get_status() in _FINAL for _, job in sent),
        seconds=60 + 3 * kills,
        what="all orders are final",
    )
    ended = counter.count("ended")
    for order, job in sent:
        if job.get_status() == JobStatus.FINISHED:
            outcome.success_without_completion += not ended[str(order)]
            outcome.wrong_results += job.return_value() != order
    outcome.succeeded = outcome.orders - len(
        {order for order, job in sent if job.get_status() != JobStatus.FINISHED}
    )
    outcome.bodies_begun = counter.count("began").total()
    outcome.bodies_ended = ended.total()
    return outcome

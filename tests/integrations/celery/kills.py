"""Kill pool children with SIGKILL while they run tasks, until enough have been killed."""

import os
import random
import signal
import time
from typing import Any

from celery.states import SUCCESS

from tests.integrations.counter import EffectCounter
from tests.integrations.killed import Killed
from tests.servers.processes import wait_until

_POOL = 3
_ORDERS_PER_KILL = 2


def kill_children(shop: Any, counter: EffectCounter, *, kills: int, seed: int) -> Killed:
    """Send orders and repeatedly kill a child that runs one."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    outcome = Killed(orders=kills * _ORDERS_PER_KILL)
    shop.worker("--concurrency", str(_POOL))
    sent = {order: shop.tasks.pay.delay(order, counter.port) for order in range(outcome.orders)}
    victims: set[int] = set()
    deadline = time.monotonic() + 60 + 3 * kills
    while outcome.kills < kills and time.monotonic() < deadline:
        at_work = counter.at_work().keys() - victims
        if at_work:
            victim = chance.choice(sorted(at_work))
            victims.add(victim)
            outcome.strikes += 1
            outcome.kills += _strike(counter, victim)
        time.sleep(chance.uniform(0.02, 0.3))
    wait_until(
        lambda: all(result.ready() for result in sent.values()),
        seconds=60 + kills,
        what="all orders are final",
    )
    ended = counter.count("ended")
    for order, result in sent.items():
        if result.state == SUCCESS:
            outcome.succeeded += 1
            outcome.success_without_completion += not ended[str(order)]
            outcome.wrong_results += result.get(10) != order
    outcome.bodies_begun = counter.count("began").total()
    outcome.bodies_ended = ended.total()
    outcome.letters = len(shop.guard.letters.list())
    return outcome


def _strike(counter: EffectCounter, victim: int) -> bool:
    """Kill a child. Return whether it was still running its task."""
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return victim in counter.at_work()

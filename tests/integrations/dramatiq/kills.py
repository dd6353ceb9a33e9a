"""Kill Dramatiq workers with SIGKILL while they run tasks, until enough have been killed."""

import random
import time
from typing import Any

from dramatiq.results import ResultMissing

from tests.integrations.counter import EffectCounter
from tests.integrations.killed import Killed
from tests.servers.processes import wait_until

_WORKERS = 2
_THREADS = 2
_SUPPLY = 4
"""The number of orders that wait or run at a time while workers are killed."""


def kill_workers(shop: Any, counter: EffectCounter, *, kills: int, seed: int) -> Killed:
    """Send each order twice, and repeatedly kill a worker that runs one."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    outcome = Killed(bodies_per_process=_THREADS)
    workers = [shop.worker() for _ in range(_WORKERS)]
    sent: list[tuple[int, Any]] = []
    deadline = time.monotonic() + 60 + 5 * kills
    while outcome.kills < kills and time.monotonic() < deadline:
        while outcome.orders - len(counter.count("ended")) < _SUPPLY:
            sent += [(outcome.orders, shop.actors.pay.send(outcome.orders)) for _ in range(2)]
            outcome.orders += 1
        time.sleep(chance.uniform(0.02, 0.3))
        place = chance.randrange(_WORKERS)
        members = set(workers[place].members())
        if members & counter.at_work().keys():
            workers[place].kill()
            outcome.strikes += 1
            outcome.kills += bool(members & counter.at_work().keys())
            # Dramatiq does not replace a killed process. Its service manager does.
            workers[place] = shop.worker()
    results = _results(shop, [message for _, message in sent], seconds=60 + 3 * kills)
    ended = counter.count("ended")
    for (order, _), result in zip(sent, results, strict=True):
        outcome.success_without_completion += not ended[str(order)]
        outcome.wrong_results += result != order
    outcome.succeeded = len({order for order, _ in sent if ended[str(order)]})
    outcome.bodies_begun, outcome.bodies_ended = counter.count("began").total(), ended.total()
    return outcome


def _results(shop: Any, messages: list[Any], *, seconds: float) -> list[Any]:
    """Wait until all messages have a result. Raise the error of one that failed."""
    results: list[Any] = []

    def have_all() -> bool:
        try:
            while len(results) < len(messages):
                results.append(messages[len(results)].get_result(backend=shop.actors.results))
        except ResultMissing:
            return False
        return True

    wait_until(have_all, seconds=seconds, what="all orders have a result")
    return results

"""Real workers, killed with -9: every message completes, and none succeeds uncompleted."""

import pytest

from tests.integrations.dramatiq.killing import kill_workers

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

KILLS = 5
"""A twentieth of what `make prove` does."""


def check(shop, counter) -> None:
    """Kill some workers and look at what became of all orders."""
    outcome = kill_workers(shop, counter, kills=KILLS, seed=1)

    assert outcome.broken() == []
    assert outcome.kills == KILLS


def test_with_the_guard_on_a_store(shop, counter):
    check(shop, counter)


def test_with_the_guard_on_redis(open_shop, redis_url, counter):
    check(open_shop(redis_url), counter)

"""Real work-horses, killed with -9: every job completes, and none succeeds uncompleted."""

import pytest

from tests.integrations.rq.killing import kill_horses

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

KILLS = 5
"""A twentieth of what `make prove` does."""


def check(shop, counter) -> None:
    """Kill some work-horses and look at what became of all orders."""
    outcome = kill_horses(shop, counter, kills=KILLS, seed=1)

    assert outcome.broken() == []
    assert outcome.kills == KILLS


def test_with_the_guard_on_a_store(shop, counter):
    check(shop, counter)


def test_with_the_guard_on_redis(open_shop, redis_url, counter):
    check(open_shop(redis_url), counter)

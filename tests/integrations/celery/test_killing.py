"""Real pool children, killed with -9: every task completes, and none succeeds uncompleted."""

import pytest

from tests.integrations.celery.killing import kill_children
from tests.integrations.counter import EffectCounter

pytestmark = pytest.mark.process

KILLS = 5
"""A twentieth of what `make prove` does."""


@pytest.fixture
def counter(tmp_path):
    """Counts effects."""
    with EffectCounter(tmp_path / "effects") as counter:
        yield counter


def check(shop, counter) -> None:
    """Kill some children and look at what became of all orders."""
    outcome = kill_children(shop, counter, kills=KILLS, seed=1)

    assert outcome.broken() == []
    assert outcome.kills == KILLS


def test_with_the_guard_on_a_store(shop, counter):
    check(shop, counter)


def test_with_the_guard_on_redis(open_shop, redis_url, counter):
    check(open_shop(redis_url), counter)

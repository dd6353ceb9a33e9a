"""Real pool children are killed with SIGKILL: every task completes, and none succeeds falsely."""

import pytest

from tests.integrations.celery.kills import kill_children
from tests.integrations.evidence import KILLS, SECONDS, keep

pytestmark = [pytest.mark.process, pytest.mark.timeout(SECONDS)]


def check(shop, counter, where: str) -> None:
    """Kill some children and check the outcome of all orders."""
    outcome = kill_children(shop, counter, kills=KILLS, seed=1)

    keep("celery-kills", where, outcome, "celery", "kombu", "redis")
    assert outcome.broken == []
    assert outcome.kills == KILLS


def test_killed_processes_lose_no_message_with_the_guard_on_a_store(shop, store_kind, counter):
    check(shop, counter, store_kind)


def test_killed_processes_lose_no_message_with_the_guard_on_redis(open_shop, redis_url, counter):
    check(open_shop(redis_url), counter, "redis")

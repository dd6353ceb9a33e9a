"""Real workers are killed with SIGKILL: every message completes, and none succeeds falsely."""

import pytest

from tests.integrations.dramatiq.kills import kill_workers
from tests.integrations.evidence import KILLS, SECONDS, WHERE, keep

pytestmark = [pytest.mark.process, pytest.mark.timeout(SECONDS)]


def check(shop, counter, where: str) -> None:
    """Kill some workers and check the outcome of all orders."""
    outcome = kill_workers(shop, counter, kills=KILLS, seed=1)

    keep("dramatiq-kills", where, outcome, "dramatiq", "redis")
    assert outcome.broken == []
    assert outcome.kills == KILLS


@WHERE
def test_killed_processes_lose_no_message_with_the_guard_on_a_store(shop, store_kind, counter):
    check(shop, counter, store_kind)


def test_killed_processes_lose_no_message_with_the_guard_on_redis(open_shop, redis_url, counter):
    check(open_shop(redis_url), counter, "redis")

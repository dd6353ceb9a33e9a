"""Real work-horses are killed with SIGKILL: every job completes, and none succeeds falsely."""

import pytest

from tests.integrations.evidence import KILLS, SECONDS, WHERE, keep
from tests.integrations.rq.kills import kill_horses

pytestmark = [pytest.mark.process, pytest.mark.timeout(SECONDS)]


def check(shop, counter, where: str) -> None:
    """Kill some work-horses and check the outcome of all orders."""
    outcome = kill_horses(shop, counter, kills=KILLS, seed=1)

    keep("rq-kills", where, outcome, "rq", "redis")
    assert outcome.broken == []
    assert outcome.kills == KILLS


@WHERE
def test_killed_processes_lose_no_message_with_the_guard_on_a_store(shop, store_kind, counter):
    check(shop, counter, store_kind)


def test_killed_processes_lose_no_message_with_the_guard_on_redis(open_shop, redis_url, counter):
    check(open_shop(redis_url), counter, "redis")

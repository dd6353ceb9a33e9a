"""The example shop under load: killed, restarted one by one, and with a cron of every second."""

import os
import time
from contextlib import closing

import pytest

from duly import Duly
from tests.integrations.evidence import KILLS_VARIABLE, keep
from tests.integrations.fastapi.judgement import Judgement
from tests.integrations.fastapi.shop_processes import open_shop

IS_PROOF = KILLS_VARIABLE in os.environ
PROCESSES = 4 if IS_PROOF else 2
KILLS = 200 if IS_PROOF else 5
"""On each database, so that both together are a twentieth."""
RESTARTS = 50 if IS_PROOF else 1
CRON_SECONDS = 60
SECONDS = 60 + 5 * KILLS

pytestmark = [pytest.mark.process, pytest.mark.timeout(2 * SECONDS)]


@pytest.fixture
def duly(store_url):
    with closing(Duly(store_url)) as duly:
        yield duly


def check(scenario: str, where: str, told: Judgement) -> None:
    """Save the outcome of a scenario, and check it."""
    told.processes = PROCESSES
    keep(scenario, where, told, "fastapi", "uvicorn", "sqlalchemy")
    assert told.broken == []
    assert told.accepted > 0
    assert told.instants > 0


def test_killed_processes_lose_no_order_and_no_instant(duly, counter, store_kind, tmp_path):
    # In `make test` there is no time to wait for a whole lease.
    lease = {} if IS_PROOF else {"SHOP_LEASE": "3"}
    with open_shop(duly, counter, tmp_path, processes=PROCESSES, **lease) as shop:
        kills = shop.kill(KILLS, seconds=SECONDS)
        told = shop.close(seconds=SECONDS)

    told.kills = kills
    check("fastapi-kills", store_kind, told)
    assert kills == KILLS
    assert told.attempts_lost > 0 or not IS_PROOF


@pytest.mark.stores("sqlite", "postgres" if IS_PROOF else "sqlite")
def test_rolling_restarts_lose_nothing_and_do_nothing_twice(duly, counter, store_kind, tmp_path):
    # On a busy machine a new process may need longer to start than uvicorn would wait.
    patience = ["--timeout-worker-healthcheck", "60"]
    with open_shop(duly, counter, tmp_path, processes=PROCESSES, options=patience) as shop:
        for _ in range(RESTARTS):
            shop.restart()
        told = shop.close(seconds=SECONDS)

    told.restarts = RESTARTS
    check("fastapi-restarts", store_kind, told)
    assert told.attempts_lost == 0
    # Sometimes uvicorn hangs up just as a request arrives. The result is judged, too: an order with
    # all its runs, or none.
    assert told.unanswered <= max(1, RESTARTS // 10)


if IS_PROOF:  # The tests above also check instants, but not for a whole minute.

    def test_a_cron_of_every_second_runs_once_per_instant(duly, counter, store_kind, tmp_path):
        with open_shop(duly, counter, tmp_path, processes=PROCESSES) as shop:
            time.sleep(CRON_SECONDS)
            told = shop.close(seconds=SECONDS)

        check("fastapi-cron", store_kind, told)
        assert told.instants >= CRON_SECONDS

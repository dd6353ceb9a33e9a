"""Known failures of row locks, held transactions and plain TTLs do not occur in the guard."""

import asyncio
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from duly.guard import Busy, Guard
from tests.servers.processes import wait_until

ROOT = Path(__file__).parents[2]


@pytest.mark.timing
@pytest.mark.stores("postgres")
def test_fifty_bodies_hold_no_database_session_and_their_duplicates_return_immediately(store_url):
    began, may_continue = threading.Barrier(51), threading.Event()
    with closing(Guard(store_url, lease=3)) as guard, closing(Guard(store_url, lease=3)) as other:

        def body(number: int) -> None:
            with guard.once(f"order:{number}"):
                began.wait(30)
                may_continue.wait(30)

        other.look("open it")
        with ThreadPoolExecutor(50) as pool:
            running = [pool.submit(body, number) for number in range(50)]
            began.wait(30)
            took = []
            for number in range(50):
                asked_at = time.monotonic()
                with pytest.raises(Busy):
                    other.once(f"order:{number}").__enter__()
                took.append(time.monotonic() - asked_at)
            time.sleep(1.5)  # Long enough to detect a session that is idle in a transaction.
            with psycopg.connect(store_url) as connection:
                (idle,) = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
                    " AND state_change < now() - interval '1 second'"
                    " AND datname = current_database()"
                ).fetchone()
            may_continue.set()
            for each in running:
                each.result(30)

    assert idle == 0
    assert statistics.median(took) < 0.1


@pytest.mark.stores("postgres")
def test_a_holder_whose_connections_are_cut_keeps_its_key(store_url):
    with closing(Guard(store_url, lease=2)) as guard, closing(Guard(store_url, lease=2)) as other:
        other.look("open it")
        with guard.once("order:1") as claim:
            for _ in range(8):
                with psycopg.connect(store_url, autocommit=True) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
                time.sleep(0.4)
                with pytest.raises(Busy):
                    other.once("order:1").__enter__()
            claim.done("paid")

        with other.once("order:1") as claim:
            assert claim.result == "paid"


@pytest.mark.stores("postgres")
def test_a_guard_continues_after_a_restart_of_its_server(private_postgres):
    url = private_postgres.create_database()
    with closing(Guard(url, lease=30)) as guard:
        with guard.once("order:1") as claim:
            private_postgres.restart()
            claim.done("paid")

        with guard.once("order:1") as claim:
            assert claim.result == "paid"


EACH = """
import os, sys
from duly.guard import Busy, Guard
guard = Guard(sys.argv[1])
place = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
for number in range(int(sys.argv[3])):
    with guard.once(f"order:{number}", wait=60) as claim:
        if claim.first:
            os.write(place, f"{number}\\n".encode())
"""


@pytest.mark.process
def test_two_processes_with_two_hundred_keys_have_two_hundred_effects(store_url, tmp_path):
    with closing(Guard(store_url)) as guard:
        guard.look("open it")
    effects = tmp_path / "effects"
    command = [sys.executable, "-c", EACH, store_url, str(effects), "200"]
    processes = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    try:
        assert [process.wait(60) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait(20)

    assert sorted(map(int, effects.read_text().split())) == list(range(200))


def test_an_asynchronous_body_is_done_after_it_was_awaited(store_url):
    ran = []
    with closing(Guard(store_url)) as guard:

        @guard.idempotent(name="charge")
        async def charge(order_id: int) -> str:
            await asyncio.sleep(0.05)
            assert guard.look(charge.key_for(order_id)).state == "held"
            ran.append(order_id)
            return "paid"

        assert asyncio.run(charge(1)) == "paid"
        wait_until(
            lambda: guard.look(charge.key_for(1)).state == "done", seconds=10, what="it is done"
        )
    assert ran == [1]

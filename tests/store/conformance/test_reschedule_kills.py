"""A process that is killed between two statements of a reschedule has done all of it or nothing."""

import signal
import subprocess
import sys
from itertools import count

import pytest

from duly.store.store_factory import open_store
from tests.store.conformance.stores import is_sqlite
from tests.store.conformance.verbs import (
    TIMEOUT,
    claimed_ids,
    enqueue_one,
    listed_ids,
    register,
    run_of,
)

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(120),
    pytest.mark.stores("sqlite-wal", "postgres"),
]

RESCHEDULE = """
import os, signal, sys
from contextlib import contextmanager
from importlib import import_module

from duly.store.ops.operators import RescheduleRun
from duly.store.store_factory import open_store

dialect, url, run_id, delay, number, side = sys.argv[1:]
crossed = None

@contextmanager
def crossing(sql):
    global crossed
    crossed = None if crossed is None else crossed + 1
    is_struck = crossed == int(number)
    if is_struck and side == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    yield
    if is_struck and side == "after":
        os.kill(os.getpid(), signal.SIGKILL)

import_module(f"duly.store.{dialect}.statement_hooks").install_hook(crossing)
store = open_store(url)
store.get_run(run_id)
crossed = 0
answer = store.do(RescheduleRun(run_id, "ada", delay=int(delay), priority=5, queue="mail"))
assert answer.done
store.close()
"""


@pytest.mark.parametrize(
    ("side", "delay_before", "delay_after"),
    [("before", 0, 60_000_000), ("after", 60, 0)],
    ids=["before, to later", "after, to now"],
)
def test_a_killed_reschedule_is_done_or_not(store_url, side, delay_before, delay_after):
    store = open_store(store_url)
    register(store)
    dialect = "sqlite" if is_sqlite(store_url) else "postgres"
    seen = set()
    for number in count(1):
        run_id = enqueue_one(store, delay_seconds=delay_before)
        numbers = (str(delay_after), str(number), side)
        killed = subprocess.run(
            [sys.executable, "-c", RESCHEDULE, dialect, store_url, run_id, *numbers],
            check=False,
            timeout=TIMEOUT,
        )
        assert killed.returncode in {0, -signal.SIGKILL}

        run = run_of(store, run_id)
        is_done = run.queue == "mail"
        seen.add((killed.returncode, is_done))
        assert (run.state, run.priority) == ("queued", 5 if is_done else 0)
        assert len(store.list_audit_entries(run_id, 5)) == is_done
        is_ready = (delay_after if is_done else delay_before) == 0
        assert claimed_ids(store, queue=run.queue) == [run_id] * is_ready
        assert listed_ids(store).count(run_id) == 1
        if killed.returncode == 0:
            break
    store.close()

    assert number > 3, "a reschedule has several statements"
    assert {(-signal.SIGKILL, False), (0, True)} <= seen
    assert side == "before" or (-signal.SIGKILL, True) in seen, "a commit was struck, too"

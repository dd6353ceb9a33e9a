"""Several processes on one SQLite file: they take turns, die during a write, and fork.

On PostgreSQL a server is between them, so none of this can happen there.
"""

import fcntl
import json
import os
import signal
import sqlite3
import threading
import time
from contextlib import closing

import pytest

from duly import faultpoints
from duly.store.reads import RunFilter
from duly.store.sqlite import process_resources as process_module
from tests.integrations.evidence import SCALE, keep
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import (
    OTHER_WORKER,
    WORKER,
    claim,
    enqueue_many,
    enqueue_one,
    key,
    listed_ids,
    register,
    state_of,
)
from tests.store.sqlite.verbs import BOTH_JOURNALS, TIMEOUT, closing_life, open_at, running, tell

pytestmark = [pytest.mark.stores("sqlite"), pytest.mark.process]

# -- several processes --


WRITE_WITHOUT_PAUSE = """
import sys, threading
from duly.store.store_factory import open_store
from tests.store.conformance.verbs import order

store = open_store(sys.argv[1])
written = 0
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
while not stop.is_set():
    store.apply([order() for _ in range(20)])
    written += 20
    if written == 20:
        print("writing", flush=True)
store.close()
print(written, flush=True)
"""


@pytest.mark.scaled
@pytest.mark.timing
@BOTH_JOURNALS
def test_processes_that_write_without_pause_do_not_starve_another_process(
    store, store_url, store_kind
):
    waits, beats = [], []
    with (
        closing_life(store),
        running(WRITE_WITHOUT_PAUSE, store_url) as first,
        running(WRITE_WITHOUT_PAUSE, store_url) as second,
        running(WRITE_WITHOUT_PAUSE, store_url) as third,
    ):
        writers = [first, second, third]
        for writer in writers:
            assert writer.stdout.readline() == "writing\n"
        until = time.monotonic() + 1.5 * SCALE
        while time.monotonic() < until:
            begin = time.monotonic()
            enqueue_one(store)
            enqueued = time.monotonic()
            alive = store.heartbeats().beat([WORKER])
            beats.append(time.monotonic() - enqueued)
            waits.append(enqueued - begin)
            assert alive == {WORKER}
        for writer in writers:
            tell(writer, "stop")
        written = [int(writer.stdout.readline()) for writer in writers]
        ended = [writer.wait(TIMEOUT) for writer in writers]

    longest = {"enqueue": round(max(waits), 4), "beat": round(max(beats), 4)}
    broken = [what for what, seconds in longest.items() if seconds >= 0.5]
    measured = {
        "seconds": 1.5 * SCALE,
        "runs_written_by_the_others": written,
        "longest_seconds": longest,
        "times": len(waits),
    }
    keep("saturated", store_kind, {"measured": measured, "broken": broken})
    # The error "database is locked" would have ended any of them.
    assert ended == [0, 0, 0]
    assert broken == [], longest
    assert min(written) > 20
    assert len(store.list_runs(RunFilter(limit=10_000_000))) == sum(written) + len(waits)


STRIKE = """
import json, sys
from duly import faultpoints
from duly.core.record import Claim
from duly.store.store_factory import open_store
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import (
    OTHER_WORKER, another_try, claim, failure, order, recover, success
)

store = open_store(sys.argv[1])
faultpoints.arm_from_environment()
match sys.argv[2]:
    case "enqueue":
        keyed = [order(key=f"new {n}", tags={"customer": "17"}) for n in range(5)]
        store.apply([*keyed, order(delay_seconds=60)])
    case "claim":
        claim(store, 3, worker=OTHER_WORKER)
    case "settle":
        first, second, third, fourth = (Claim._make(claim) for claim in json.loads(sys.argv[3]))
        store.apply(
            [success(first), failure(second), another_try(third), another_try(fourth, 60.0)]
        )
    case "recover":
        recover(store)
"""
VERBS = ("enqueue", "claim", "settle", "recover")
POINTS = [name for name in faultpoints.NAMES if name.partition(".")[0] in VERBS]


@BOTH_JOURNALS
@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_inside_a_write_leaves_all_of_it_or_nothing(
    store, store_url, path, tables, point
):
    register(store)
    register(store, OTHER_WORKER)
    enqueue_many(store, 4)
    claims = claim(store)
    for number in range(6):
        enqueue_one(store, key=key(f"key {number}"), tags={"customer": "17"})
    before = tables.everything()
    verb, _, moment = point.partition(".")

    with running(
        STRIKE, store_url, verb, json.dumps(claims), DULY_FAULTPOINTS=f"{point}=kill"
    ) as child:
        ended = child.wait(TIMEOUT)

    assert ended == -signal.SIGKILL, "the fault was reached"
    after = tables.everything()
    if moment == "after_commit":
        assert states_after(store, claims) == EXPECTED_STATES[verb]
    else:
        assert after == before
    assert tables.rows("PRAGMA integrity_check") == [("ok",)]
    assert_each_run_is_in_one_place(tables)
    # The lock of the dead process is free, and the next process can write.
    assert enqueue_one(store)
    with open_at(path) as reopened:
        assert len(listed_ids(reopened)) == len(listed_ids(store))


EXPECTED_STATES = {
    "enqueue": (["running"] * 4, {"queued": 12, "running": 4}),
    "claim": (["running"] * 4, {"queued": 3, "running": 7}),
    "settle": (
        ["succeeded", "failed", "queued", "queued"],
        {"queued": 8, "succeeded": 1, "failed": 1},
    ),
    "recover": (["queued"] * 4, {"queued": 10}),
}


def states_after(store, claims):
    """Return the states of the claimed runs, and how many runs are in each state."""
    counts = {}
    for run in store.list_runs(RunFilter(limit=100)):
        counts[run.state] = counts.get(run.state, 0) + 1
    return [state_of(store, found.run_id) for found in claims], counts


def assert_each_run_is_in_one_place(tables):
    rows = tables.rows("SELECT id FROM duly_every_run")
    keys = tables.rows("SELECT run_id FROM duly_keys")
    tags = tables.rows("SELECT run_id FROM duly_tags")
    assert len(rows) == len(set(rows))
    assert set(keys) | set(tags) <= set(rows)


# -- forked children --


FORK_AND_CLOSE_FIRST = """
import os, sys
from duly.store.store_factory import open_store
from tests.store.conformance.verbs import enqueue_one

stores = [open_store(sys.argv[1]), open_store(sys.argv[1])]
enqueue_one(stores[0])
closed = os.pipe()
if os.fork() == 0:
    enqueue_one(stores[1])
    print("forked", flush=True)
    os.read(closed[0], 1)
    enqueue_one(stores[1])
    print("written", flush=True)
    os._exit(0)
sys.stdin.readline()
for store in stores:
    store.close()
os.write(closed[1], b"!")
os.wait()
print("ended", flush=True)
"""


@BOTH_JOURNALS
def test_writes_of_a_forked_child_are_kept_after_the_end_of_its_parent(path, store_url):
    """If the child does not really hold its locks, the parent closes the file as its only user."""
    with running(FORK_AND_CLOSE_FIRST, store_url) as process:
        assert process.stdout.readline() == "forked\n"
        tell(process, "close")
        assert process.stdout.readline() == "written\n"
        assert process.stdout.readline() == "ended\n"

    with open_at(path) as store:
        assert len(listed_ids(store)) == 3


FORK_IN_A_TRANSACTION = """
import os, sys
from duly.errors import StoreError
from duly.store.store_factory import open_store
from tests.store.conformance.verbs import enqueue_one, listed_ids

store = open_store(sys.argv[1])
section = store.task_transaction()
section.connection.execute("CREATE TABLE half (id)")
if os.fork() == 0:
    try:
        enqueue_one(store)
    except StoreError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
section.rollback()
print(enqueue_one(store) in listed_ids(store), flush=True)
"""


@BOTH_JOURNALS
def test_a_write_of_a_child_forked_inside_a_transaction_raises_an_error(path, store_url):
    with running(FORK_IN_A_TRANSACTION, store_url) as process:
        assert "forked during a transaction" in process.stdout.readline()
        assert process.stdout.readline() == "True\n"

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


FORK_AND_BE_KILLED = """
import os, signal, sys, time
from duly.store.store_factory import open_store

store = open_store(sys.argv[1])
section = store.task_transaction()
section.connection.execute("CREATE TABLE half (id)")
child = os.fork()
if child == 0:
    # As a process of multiprocessing does that never uses duly.
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@BOTH_JOURNALS
def test_a_forked_child_does_not_keep_the_write_lock_of_its_killed_parent(store, store_url):
    with running(FORK_AND_BE_KILLED, store_url) as process:
        child = int(process.stdout.readline())
        try:
            assert process.wait(TIMEOUT) == -signal.SIGKILL

            # The child closes the lock file before it does anything else, but it may not have run
            # yet.
            wait_until(store.can_write_now, seconds=TIMEOUT, what="the lock is free")
            assert enqueue_one(store) in listed_ids(store)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_write_that_waits_for_another_process_is_distinguished_from_one_that_hangs(store, path):
    # Another open file of this process has its own lock, like another process.
    with path.with_name(f"{path.name}-duly.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writing = threading.Thread(target=enqueue_one, args=(store,))
        writing.start()
        wait_until(lambda: store.is_kept_waiting(1.0), seconds=TIMEOUT, what="the write waits")
    writing.join(TIMEOUT)

    assert not writing.is_alive()
    assert not store.is_kept_waiting(1.0)


def test_a_fork_that_does_not_wait_for_a_reader_does_not_release_the_lock_of_the_reader(
    store, monkeypatch
):
    process = store._here()
    monkeypatch.setattr(process_module, "FORK_SECONDS", 0.01)
    with process.reading:
        process.quiesce()
        process.resume()

        assert process.reading.locked()
    assert process.lock.is_free()

"""Live workers are recognized by a lock and a counter in a file next to the database.

PostgreSQL has no such files: there the row of a worker has its counter.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from duly.clock import new_id
from duly.store.heartbeats import HeartbeatReading
from duly.store.sqlite.heartbeats import FileHeartbeats
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import OTHER_WORKER, WORKER
from tests.store.sqlite.verbs import TIMEOUT, closing_life, running, tell

pytestmark = pytest.mark.stores("sqlite")


LIVE = """
import os, sys, time
from duly.clock import new_id
from duly.store.store_factory import open_store
from tests.store.conformance.verbs import WORKER, register

store = open_store(sys.argv[1])
life = store.live(WORKER)
register(store)
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        # It inherits every descriptor and outlives its parent by far.
        sys.stdin.close()
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
print("living", flush=True)
for line in sys.stdin:
    match line.strip():
        case "beat":
            print(sorted(store.heartbeats().beat([WORKER])), flush=True)
        case "look":
            print(store.heartbeats().read().get(WORKER, "not watched"), flush=True)
        case "end":
            life.end()
            print("ended", flush=True)
"""


def ask(process, word):
    tell(process, word)
    return process.stdout.readline().strip()


@pytest.fixture
def living(store, store_url):
    """A live worker in a process of its own."""
    with running(LIVE, store_url) as process:
        assert process.stdout.readline() == "living\n"
        yield process


@pytest.mark.process
def test_the_beats_of_a_live_worker_are_read(store, living):
    before = store.heartbeats().read()[WORKER].beats

    assert ask(living, "beat") == f"['{WORKER}']"
    once = store.heartbeats().read()[WORKER].beats
    ask(living, "beat")
    twice = store.heartbeats().read()[WORKER].beats

    assert (before, once, twice) == (0, 1, 2)


@pytest.mark.process
def test_a_killed_worker_is_seen_dead_at_once(store, living):
    ask(living, "beat")
    living.kill()
    living.wait(TIMEOUT)

    assert store.heartbeats().read() == {WORKER: HeartbeatReading(None)}


@pytest.mark.process
def test_a_frozen_worker_is_not_dead_but_its_counter_does_not_change(store, living):
    ask(living, "beat")
    living.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, living.pid, os.WSTOPPED | os.WNOWAIT)

    counters = [store.heartbeats().read()[WORKER].beats for _ in range(3)]

    assert counters == [1, 1, 1]
    living.send_signal(signal.SIGCONT)
    ask(living, "beat")
    assert store.heartbeats().read()[WORKER].beats == 2


@pytest.mark.process
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux shows the state of a process"
)
def test_a_worker_that_does_not_beat_is_known_to_run_unless_it_is_stopped(store, living):
    is_running = store.heartbeats().read()[WORKER].is_running
    living.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, living.pid, os.WSTOPPED | os.WNOWAIT)
    is_running_when_stopped = store.heartbeats().read()[WORKER].is_running

    assert (is_running, is_running_when_stopped) == (True, False)


@pytest.fixture
def group():
    """A control group of version 2, on systems where this user may create one."""
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        found = Path(root) / f"duly-test-{os.getpid()}"
        with suppress(OSError):
            found.mkdir()
            if (found / "cgroup.freeze").exists():
                yield found
                found.rmdir()
                return
            found.rmdir()
    pytest.skip("this user cannot create a control group")


@pytest.mark.process
def test_a_worker_whose_control_group_is_frozen_is_not_known_to_run(store, living, group):
    (group / "cgroup.procs").write_text(str(living.pid))
    (group / "cgroup.freeze").write_text("1")
    wait_until(
        lambda: "frozen 1" in (group / "cgroup.events").read_text(), seconds=20, what="it freezes"
    )
    is_running = store.heartbeats().read()[WORKER].is_running
    (group / "cgroup.freeze").write_text("0")
    own = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()
    (group.parent / own.strip("/") / "cgroup.procs").write_text(str(living.pid))

    assert not is_running


@pytest.mark.process
def test_a_worker_that_stopped_in_good_order_counts_as_gone(store, living):
    ask(living, "end")

    assert store.heartbeats().read() == {WORKER: HeartbeatReading(None)}


@pytest.mark.process
def test_a_worker_that_reads_its_own_heartbeat_keeps_its_lock(store, living):
    assert ask(living, "look") == "not watched"
    assert ask(living, "look") == "not watched"

    assert store.heartbeats().read()[WORKER].beats is not None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has locks of an open file")
def test_a_worker_that_opens_and_closes_its_life_file_keeps_its_lock(store, tmp_path):
    with closing_life(store):
        for file in store.folder.glob("*.life"):
            file.read_bytes()
        elsewhere = tmp_path / "elsewhere"
        elsewhere.symlink_to(store.folder)
        seen = FileHeartbeats(elsewhere, lambda: [(WORKER, 15.0)]).read()

    assert seen[WORKER].beats == 0
    assert seen[WORKER].is_running


@pytest.mark.process
def test_a_forked_child_of_a_worker_does_not_keep_it_alive(store, store_url):
    with running(LIVE, store_url, "fork") as process:
        child = int(process.stdout.readline())
        try:
            assert process.stdout.readline() == "living\n"
            alive = store.heartbeats().read()[WORKER].beats
            process.kill()
            process.wait(TIMEOUT)
            dead = store.heartbeats().read()[WORKER].beats
        finally:
            os.kill(child, signal.SIGKILL)

    assert alive == 0
    assert dead is None


@pytest.mark.process
def test_a_worker_that_was_recovered_no_longer_beats(store, living):
    assert ask(living, "beat") == f"['{WORKER}']"

    store.heartbeats().forget(WORKER)

    assert ask(living, "beat") == "[]"


def test_only_registered_workers_are_watched(store):
    with closing_life(store):
        assert store.heartbeats().read() == {}


def test_a_worker_without_a_life_file_does_not_beat(store):
    assert store.heartbeats().beat([OTHER_WORKER]) == set()


def test_beats_of_workers_that_start_and_stop_leave_no_file_open(store):
    def beat_for_a_new_worker():
        worker = new_id()
        with closing_life(store, worker):
            assert store.heartbeats().beat([worker]) == {worker}
        store.heartbeats().forget(worker)

    beat_for_a_new_worker()
    before = open_files()
    for _ in range(10):
        beat_for_a_new_worker()

    assert len(open_files()) <= len(before)


def open_files():
    return list(Path("/proc/self/fd").iterdir())

"""What only SQLite does: where its file lies, who else writes it, how it dies, who lives beside it.

None of this exists on PostgreSQL, where a server looks after files, locks and crashes.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from duly import faultpoints
from duly.errors import (
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    WouldBlockItself,
)
from duly.store.opening import open_store
from duly.store.protocol import RunFilter, Settled
from duly.store.sqlite import connection as connection_module
from duly.store.sqlite.connection import file_system_of, wal_can_lose_commits
from tests.store.conformance.opening import opened_tables
from tests.store.conformance.verbs import (
    OTHER_WORKER,
    WORKER,
    claim,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    key,
    listed_ids,
    order,
    register,
    state_of,
    success,
)

SCALE = float(os.environ.get("DULY_TEST_SCALE", "1"))
REPOSITORY = Path(__file__).parents[2]
TIMEOUT = 30.0
pytestmark = pytest.mark.stores("sqlite")


@pytest.fixture
def path(store_url):
    """The file of a store in each journal mode; the one in rollback mode is an application's."""
    return Path(store_url.removeprefix("sqlite:///"))


@pytest.fixture
def store(store_url):
    """A store on that file."""
    with closing(open_store(store_url)) as store:
        yield store


@pytest.fixture
def tables(store, store_url):
    """Its tables."""
    with opened_tables(store_url) as tables:
        yield tables


def mode_of(path):
    return path.stat().st_mode & 0o777


def journal_mode_of(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA journal_mode").fetchone()[0]


def open_at(path):
    return closing(open_store(f"sqlite:///{path}"))


# -- where the file lies --


def test_a_new_file_and_what_lies_beside_it_are_for_their_owner_alone(tmp_path):
    file = tmp_path / "new.db"
    before = os.umask(0)
    try:
        with open_at(file) as store, closing_life(store):
            enqueue_one(store)
            modes = {entry.name: mode_of(entry) for entry in tmp_path.iterdir()}
            lives = [mode_of(entry) for entry in (tmp_path / "new.db-duly.d").iterdir()]
    finally:
        os.umask(before)

    assert modes == {
        "new.db": 0o600,
        "new.db-wal": 0o600,
        "new.db-shm": 0o600,
        "new.db-duly.lock": 0o600,
        "new.db-duly.d": 0o700,
    }
    assert lives == [0o600]


def test_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / "real.db").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")

    with pytest.raises(StoreRefused, match="symbolic link"):
        open_store(f"sqlite:///{tmp_path / 'link.db'}")

    assert (tmp_path / "real.db").stat().st_size == 0


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(StoreRefused, match="does not exist"):
        open_store(f"sqlite:///{tmp_path / 'missing' / 'new.db'}")


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    file = tmp_path / "letter.txt"
    file.write_text("Dear Ada, this is no database, whatever it is called. " * 100)
    before = file.read_bytes()

    with pytest.raises(StoreRefused, match="not a sound SQLite database"):
        open_store(f"sqlite:///{file}")

    assert file.read_bytes() == before


OPEN_WITHOUT_PRIVILEGES = """
import os, sys
from duly.errors import DulyError
from duly.store.opening import open_store
import duly.store.sqlite.store

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    store = open_store(sys.argv[1])
    store.close()
except DulyError as error:
    print(type(error).__name__, error)
else:
    print("opened")
"""


@pytest.fixture
def open_folder():
    """A folder that every user may enter, which pytest's own folders are not."""
    with tempfile.TemporaryDirectory(prefix="duly-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def opened_by_somebody_without_rights(file):
    """Try it as a user for whom permissions count; they do not for root."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN_WITHOUT_PRIVILEGES, f"sqlite:///{file}"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_a_folder_that_cannot_be_written_is_refused(open_folder):
    open_folder.chmod(0o555)

    said = opened_by_somebody_without_rights(open_folder / "new.db")

    assert said.startswith("StoreReadOnly")
    assert "permissions" in said
    assert list(open_folder.iterdir()) == []


@pytest.mark.process
def test_a_file_in_a_folder_that_cannot_be_written_is_refused(open_folder):
    file = open_folder / "there.db"
    with open_at(file) as store:
        enqueue_one(store)
    for entry in open_folder.iterdir():
        entry.chmod(0o666)
    (open_folder / "there.db-duly.lock").unlink()
    open_folder.chmod(0o555)

    assert opened_by_somebody_without_rights(file).startswith("StoreReadOnly")


@pytest.mark.process
def test_a_file_that_cannot_be_written_is_refused(open_folder):
    file = open_folder / "application.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE application_data (id)")
    file.chmod(0o444)
    open_folder.chmod(0o777)

    assert opened_by_somebody_without_rights(file).startswith("StoreReadOnly")


@pytest.mark.process
def test_a_folder_that_cannot_be_entered_is_refused(open_folder):
    closed = open_folder / "closed"
    closed.mkdir(mode=0o000)

    try:
        said = opened_by_somebody_without_rights(closed / "new.db")
    finally:
        closed.chmod(0o700)

    assert said.startswith(("StoreReadOnly", "StoreRefused"))


@pytest.mark.process
def test_somebody_without_special_rights_may_use_a_folder_of_their_own(open_folder):
    """The counter-proof of the tests above: what they show is the permissions' doing."""
    open_folder.chmod(0o777)

    assert opened_by_somebody_without_rights(open_folder / "new.db") == "opened\n"


# -- file systems --


@pytest.fixture
def mounts(monkeypatch):
    """Lets the system report other mounts than it has."""
    read_text = Path.read_text
    reported = []

    def read(self, *args, **kwargs):
        if str(self) == "/proc/self/mounts":
            return "".join(f"{line}\n" for line in reported)
        return read_text(self, *args, **kwargs)

    monkeypatch.setattr(connection_module.Path, "read_text", read)
    return reported


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph"])
def test_a_network_file_system_is_refused(tmp_path, mounts, kind):
    mounts += ["/dev/vda / ext4 rw 0 0", f"server:/share {tmp_path} {kind} rw 0 0"]

    with pytest.raises(StoreRefused, match=f"lies on {kind}"):
        open_store(f"sqlite:///{tmp_path / 'new.db'}")

    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["/dev/vda / ext4 rw 0 0"], "ext4"),
        (["server:/share / nfs rw 0 0", "tmpfs {place} tmpfs rw 0 0"], "tmpfs"),
        (["/dev/vda / ext4 rw 0 0", "server:/share {place}x nfs rw 0 0"], "ext4"),
        (["/dev/vda / ext4 rw 0 0", "server:/share {place}/deeper nfs rw 0 0"], "ext4"),
        # What was mounted last over the same place is what one sees.
        (["server:/share {place} nfs rw 0 0", "/dev/vda {place} xfs rw 0 0"], "xfs"),
        ([], ""),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_its_innermost_mount(tmp_path, mounts, lines, kind):
    place = tmp_path.resolve()
    mounts += [line.format(place=place) for line in lines]

    assert file_system_of(tmp_path) == kind


def test_a_mount_point_with_blanks_is_understood(tmp_path, mounts):
    folder = tmp_path / "my share"
    folder.mkdir()
    escaped = str(folder.resolve()).replace(" ", "\\040")
    mounts += ["/dev/vda / ext4 rw 0 0", f"server:/share {escaped} nfs4 rw 0 0"]

    assert file_system_of(folder) == "nfs4"


# -- the journal --


def test_a_file_of_its_own_is_put_into_wal_mode(tmp_path):
    with open_at(tmp_path / "own.db"):
        pass

    assert journal_mode_of(tmp_path / "own.db") == "wal"


def test_an_empty_file_is_its_own(tmp_path):
    (tmp_path / "empty.db").touch()

    with open_at(tmp_path / "empty.db"):
        pass

    assert journal_mode_of(tmp_path / "empty.db") == "wal"


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_an_applications_file_keeps_its_journal_mode_and_its_data(tmp_path, mode):
    file = tmp_path / "application.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE application_data (note)")
        connection.execute("INSERT INTO application_data VALUES ('mine')")

    with open_at(file) as store:
        enqueue_one(store)
    with open_at(file) as store:
        assert len(listed_ids(store)) == 1

    assert journal_mode_of(file) == mode
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT note FROM application_data").fetchall() == [("mine",)]


@pytest.mark.parametrize(
    ("mode", "version", "warned"),
    [
        ("wal", (3, 40, 1), True),
        ("wal", (3, 51, 3), False),
        ("delete", (3, 40, 1), False),
    ],
)
def test_an_applications_file_in_wal_mode_is_worth_a_warning_on_a_vulnerable_build(
    tmp_path, monkeypatch, mode, version, warned
):
    file = tmp_path / "application.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE application_data (note)")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)

    with open_at(file) as store:
        assert bool(store.notices) == warned


@pytest.mark.parametrize(
    ("version", "vulnerable"),
    [
        ((3, 35, 0), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
        ((4, 0, 0), False),
    ],
)
def test_the_builds_that_can_lose_commits_in_wal_mode_are_known(monkeypatch, version, vulnerable):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)

    assert wal_can_lose_commits() == vulnerable


def test_every_commit_is_flushed_to_the_disk(store):
    full = 2

    for connection in (store._process.writer, store._process.reader):
        assert connection.execute("PRAGMA synchronous").fetchone() == (full,)


# -- a disk that is full --


def test_a_full_disk_is_an_error_that_leaves_nothing_half_written(store, tables):
    register(store)
    found = enqueue_and_claim(store)
    (pages,) = store._process.writer.execute("PRAGMA page_count").fetchone()
    store._process.writer.execute(f"PRAGMA max_page_count = {pages}")
    before = tables.everything()
    large = json.dumps([[], {"text": "x" * 100_000}])

    with pytest.raises(StoreFull, match="free space"):
        store.apply(
            [order(arguments=large, key=f"key {n}", tags={"n": "1"}) for n in range(20)]
        )

    assert tables.everything() == before
    assert tables.rows("PRAGMA integrity_check") == [("ok",)]
    store._process.writer.execute(f"PRAGMA max_page_count = {pages + 10_000}")
    assert store.apply([success(found)]) == [Settled.DONE]
    assert enqueue_one(store, arguments=large)


# -- one connection per section --


def test_a_write_of_the_thread_that_holds_the_lock_is_refused_instead_of_blocking(store):
    section = store.section()
    section.connection.execute("SELECT 1")

    with pytest.raises(WouldBlockItself):
        enqueue_one(store)

    section.rollback()
    assert enqueue_one(store)


def test_settling_many_takes_few_statements(store):
    register(store)
    enqueue_many(store, 200)
    claims = claim(store)
    statements = []
    store._process.writer.set_trace_callback(statements.append)

    answers = store.apply([success(found)._replace(keyed=False) for found in claims])

    store._process.writer.set_trace_callback(None)
    assert answers == [Settled.DONE] * 200
    assert len(statements) < 20


# -- several processes --


@contextmanager
def running(script, *arguments, **environment):
    """Run a script in another Python until the block ends; its output comes by lines."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=REPOSITORY,
        env=os.environ | {name: str(value) for name, value in environment.items()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tell(process, word):
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


WRITE_WITHOUT_PAUSE = """
import sys, threading
from duly.store.opening import open_store
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


@pytest.mark.process
def test_processes_that_write_without_pause_do_not_starve_another(store, store_url):
    waits = []
    with (
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
            waits.append(time.monotonic() - begin)
        for writer in writers:
            tell(writer, "stop")
        written = [int(writer.stdout.readline()) for writer in writers]
        ended = [writer.wait(TIMEOUT) for writer in writers]

    # "database is locked" in any of them would have ended it with an error.
    assert ended == [0, 0, 0]
    assert max(waits) < 0.5
    assert min(written) > 20
    assert len(store.list_runs(RunFilter(limit=10_000_000))) == sum(written) + len(waits)


STRIKE = """
import json, sys
from duly import faultpoints
from duly.core.record import Claim
from duly.store.opening import open_store
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


@pytest.mark.process
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

    assert ended == -signal.SIGKILL, "the fault must have struck"
    after = tables.everything()
    if moment == "after_commit":
        assert states_after(store, claims) == EXPECTED_STATES[verb]
    else:
        assert after == before
    assert tables.rows("PRAGMA integrity_check") == [("ok",)]
    assert_each_run_is_in_one_place(tables)
    # The dead process's lock is free, and whoever comes next goes on.
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
from duly.store.opening import open_store
from tests.store.conformance.verbs import enqueue_one

stores = [open_store(sys.argv[1]), open_store(sys.argv[1])]
enqueue_one(stores[0])
closed = os.pipe()
if os.fork() == 0:
    enqueue_one(stores[1])
    print("forked", flush=True)
    os.read(closed[0], 1)
    enqueue_one(stores[0])
    print("written", flush=True)
    os._exit(0)
sys.stdin.readline()
for store in stores:
    store.close()
os.write(closed[1], b"!")
os.wait()
print("ended", flush=True)
"""


@pytest.mark.process
def test_what_a_forked_child_writes_survives_its_parents_end(path, store_url):
    """A parent that closes finds itself alone, if its child only seems to hold its locks."""
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
from duly.store.opening import open_store
from tests.store.conformance.verbs import enqueue_one, listed_ids

store = open_store(sys.argv[1])
section = store.section()
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


@pytest.mark.process
def test_a_child_forked_inside_a_transaction_is_told_that_it_cannot_go_on(path, store_url):
    with running(FORK_IN_A_TRANSACTION, store_url) as process:
        assert "middle of a transaction" in process.stdout.readline()
        assert process.stdout.readline() == "True\n"

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# -- who lives --


@contextmanager
def closing_life(store, worker=WORKER):
    life = store.live(worker)
    try:
        yield life
    finally:
        life.end()


LIVE = """
import os, sys, time
from duly.store.opening import open_store
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
            print(sorted(store.pulse().beat([WORKER])), flush=True)
        case "look":
            print(store.pulse().read().get(WORKER, "not watched"), flush=True)
        case "end":
            life.end()
            print("ended", flush=True)
"""


def ask(process, word):
    tell(process, word)
    return process.stdout.readline().strip()


@pytest.fixture
def living(store, store_url):
    """A worker in a process of its own."""
    with running(LIVE, store_url) as process:
        assert process.stdout.readline() == "living\n"
        yield process


@pytest.mark.process
def test_a_living_workers_beats_are_seen(store, living):
    before = store.pulse().read()[WORKER]

    assert ask(living, "beat") == f"['{WORKER}']"
    once = store.pulse().read()[WORKER]
    ask(living, "beat")
    twice = store.pulse().read()[WORKER]

    assert (before, once, twice) == (0, 1, 2)


@pytest.mark.process
def test_a_killed_worker_is_seen_dead_at_once(store, living):
    ask(living, "beat")
    living.kill()
    living.wait(TIMEOUT)

    assert store.pulse().read() == {WORKER: None}


@pytest.mark.process
def test_a_frozen_worker_is_not_dead_but_its_counter_stands_still(store, living):
    ask(living, "beat")
    living.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, living.pid, os.WSTOPPED | os.WNOWAIT)

    counters = [store.pulse().read()[WORKER] for _ in range(3)]

    assert counters == [1, 1, 1]
    living.send_signal(signal.SIGCONT)
    ask(living, "beat")
    assert store.pulse().read()[WORKER] == 2


@pytest.mark.process
def test_a_worker_that_ended_in_good_order_is_gone(store, living):
    ask(living, "end")

    assert store.pulse().read() == {WORKER: None}


@pytest.mark.process
def test_a_worker_that_looks_at_itself_does_not_let_go_of_its_life(store, living):
    assert ask(living, "look") != "None"
    assert ask(living, "look") != "None"

    assert store.pulse().read()[WORKER] is not None


@pytest.mark.process
def test_a_child_that_a_worker_forked_does_not_keep_it_alive(store, store_url):
    with running(LIVE, store_url, "fork") as process:
        child = int(process.stdout.readline())
        try:
            assert process.stdout.readline() == "living\n"
            alive = store.pulse().read()[WORKER]
            process.kill()
            process.wait(TIMEOUT)
            dead = store.pulse().read()[WORKER]
        finally:
            os.kill(child, signal.SIGKILL)

    assert alive == 0
    assert dead is None


@pytest.mark.process
def test_a_worker_that_was_recovered_beats_for_nobody(store, living):
    assert ask(living, "beat") == f"['{WORKER}']"

    store.pulse().forget(WORKER)

    assert ask(living, "beat") == "[]"


def test_only_registered_workers_are_watched(store):
    with closing_life(store):
        assert store.pulse().read() == {}


def test_a_worker_nobody_ever_saw_beats_for_nobody(store):
    assert store.pulse().beat([OTHER_WORKER]) == set()


def test_a_closed_store_says_so(store_url):
    store = open_store(store_url)
    store.close()

    with pytest.raises(StoreError, match="closed"):
        enqueue_one(store)


def test_a_store_that_cannot_be_written_any_more_says_so(store):
    store._process.writer.execute("PRAGMA query_only = ON")

    with pytest.raises(StoreReadOnly):
        enqueue_one(store)

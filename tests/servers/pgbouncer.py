"""A real PgBouncer in transaction mode, connected to a PostgreSQL of the tests."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.servers.postgres import PostgresEndpoint, database_of
from tests.servers.processes import ServerFolder, free_port

START_SECONDS = 20.0
# A test has more clients than server connections, so that a session changes servers.
POOL_SIZE = 5


class PgBouncer:
    """A PgBouncer whose clients get a server connection only for one transaction.

    `with PgBouncer(server, program) as bouncer:` starts it, and removes everything at the end.
    """

    def __init__(self, server: PostgresEndpoint, program: Path) -> None:
        self._server = server
        self._program = program
        self._folder = ServerFolder("pgbouncer")
        self._process: subprocess.Popen[bytes] | None = None
        self.log = self._folder.path / "pgbouncer.log"
        self.port = free_port()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> str:
        """PgBouncer's version, such as "1.18.0"."""
        return version_of(self._program)

    def start(self) -> None:
        """Start PgBouncer and return when it answers."""
        assert self._process is None, "PgBouncer is running"
        self._process = self._folder.spawn(
            [self._program, self._write_configuration()], log=self.log
        )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PgBouncer: {self.log.read_text()}") from error
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """Kill PgBouncer, which has no state to save. Every client loses its connection."""
        assert self._process is not None, "PgBouncer is not running"
        self._process.kill()
        self._folder.forget(self._process)
        self._process = None

    def close(self) -> None:
        """Stop PgBouncer, if it runs, and remove its folder."""
        if self._process is not None:
            self.stop()
        self._folder.close()

    def url(self, database: str) -> str:
        """Return the URL of a database of the server through PgBouncer."""
        return f"postgresql://duly@127.0.0.1:{self.port}/{database}"

    def create_database(self, *, template: str = "template0") -> str:
        """Create a database on the server and return its URL through PgBouncer."""
        return self.url(database_of(self._server.create_database(template=template)))

    def drop_database(self, url: str) -> None:
        """Drop a database by its URL through PgBouncer."""
        self._server.drop_database(url)

    def _write_configuration(self) -> Path:
        server = conninfo_to_dict(self._server.url("postgres"))
        target = " ".join(
            f"{name}='{server[name]}'"
            for name in ("host", "port", "user", "password")
            if name in server
        )
        configuration = self._folder.path / "pgbouncer.ini"
        configuration.write_text(
            f"""\
[databases]
* = {target}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = {POOL_SIZE}
"""
        )
        self._folder.hand_over(configuration)
        return configuration


def find_pgbouncer() -> Path | None:
    """Find the program. Debian installs it in a folder that only root's PATH contains."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    return Path(found) if found else None


def version_of(program: Path) -> str:
    """Return the version of a PgBouncer program."""
    printed = subprocess.run(
        [program, "--version"], check=True, capture_output=True, text=True
    ).stdout
    return printed.split()[1]

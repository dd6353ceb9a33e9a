"""Filled stores, and what their databases write and occupy."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg

from benchmarks.databases.sqlite import Sqlite
from benchmarks.retention.filling import fill_postgres, fill_sqlite
from duly.store.sqlite.connection import connect
from duly.store.store_factory import open_store, sqlite_path
from tests.servers.postgres import PostgresServer, find_binaries

_PRUNED = "SELECT sum(pruned) FROM duly_accounts"
_SIZE = """
    SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname ~ '^duly_'
"""
_VACUUM = "VACUUM duly_history, duly_attempts, duly_steps, duly_logs, duly_tags"
_AUTOVACUUM_PACE = "SET vacuum_cost_delay = '2ms'"


class Filled(Protocol):
    """A store with ended runs."""

    url: str
    name: str
    described: str
    count: int
    dump: Callable[[], AbstractContextManager[None]] | None
    """Dumps the database during a block, if other programs do that while workers write."""
    snapshot: Callable[[], AbstractContextManager[None]] | None
    """Holds a snapshot during a block, if that keeps deleted rows from being removed."""

    def pruned(self) -> int:
        """Return how many runs were deleted."""
        ...

    def written(self) -> int:
        """Return how many bytes were written so far: to the log of PostgreSQL, or to all files."""
        ...

    def size(self) -> int:
        """Return the bytes on disk."""
        ...

    def free_space(self) -> str:
        """Describe the space that new rows can use."""
        ...

    def vacuum(self) -> float | None:
        """Make the space of deleted rows usable. Return the seconds, or None if it already is."""
        ...


class FilledPostgres:
    """A database on a private cluster."""

    def __init__(self, server: PostgresServer, programs: Path, count: int) -> None:
        self._server = server
        self._pg_dump = programs / "pg_dump"
        self.name, self.count = "postgres", count
        self.described = f"PostgreSQL {server.version}, private cluster, fsync on"
        self.url = server.create_database()
        self.dump, self.snapshot = self._dump, self._snapshot
        open_store(self.url).close()
        fill_postgres(self.url, count)

    def pruned(self) -> int:
        return int(self.value(_PRUNED))

    def written(self) -> int:
        return int(self.value("SELECT pg_current_wal_insert_lsn() - '0/0'"))

    def size(self) -> int:
        return int(self.value(_SIZE))

    def free_space(self) -> str:
        return "new rows use the space of deleted ones"

    def vacuum(self) -> float:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(_AUTOVACUUM_PACE)
            began = time.perf_counter()
            connection.execute(_VACUUM)
            return time.perf_counter() - began

    def value(self, query: str) -> Any:  # noqa: ANN401 - one value of any type
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        with closing(psycopg.connect(self.url)) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT 1 FROM duly_runs")
            yield

    @contextmanager
    def _dump(self) -> Iterator[None]:
        """Run pg_dump during a block."""
        command = [self._pg_dump, "--format=custom", "--compress=0", self.url]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603 - the server's
        begun = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY %'"
        while process.poll() is None and not self.value(begun):
            time.sleep(0.02)
        try:
            yield
            assert process.poll() in {None, 0}, "pg_dump failed"
        finally:
            process.kill()
            process.wait()


class FilledSqlite:
    """A file in WAL mode."""

    dump = snapshot = None

    def __init__(self, url: str, count: int) -> None:
        self.url, self.count = url, count
        self._file = sqlite_path(url)
        self.name, self.described = Sqlite().name, Sqlite().described
        fill_sqlite(self._file, count)

    def pruned(self) -> int:
        return self._value(_PRUNED)

    def written(self) -> int:
        # This process writes nothing else in the meantime.
        for line in Path("/proc/self/io").read_text().splitlines():
            name, _, number = line.partition(": ")
            if name == "wchar":
                return int(number)
        raise LookupError("the kernel does not count what a process writes")

    def size(self) -> int:
        return self._file.stat().st_size

    def free_space(self) -> str:
        share = self._value("PRAGMA freelist_count") / self._value("PRAGMA page_count")
        return f"{share:.0%} of the pages are free for new rows"

    def vacuum(self) -> None:
        """Do nothing: SQLite frees pages when their rows are deleted."""

    def _value(self, query: str) -> int:
        with closing(connect(self._file)) as connection:
            ((found,),) = connection.execute(query).fetchall()
        return int(found)


@contextmanager
def filled_postgres(count: int, version: int | None) -> Iterator[FilledPostgres]:
    """Start a server with a filled database, and remove it afterwards."""
    found = find_binaries()
    assert found, "no PostgreSQL server programs were found; see `make setup`"
    programs = found[version or max(found)]
    with PostgresServer(programs) as server:
        yield FilledPostgres(server, programs, count)


@contextmanager
def filled_sqlite(count: int) -> Iterator[FilledSqlite]:
    """Fill a file in a folder that is removed afterwards."""
    with Sqlite().fresh() as url:
        yield FilledSqlite(url, count)

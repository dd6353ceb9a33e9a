"""The bare loops on SQLite, with the standard library's driver, in a temporary folder."""

import json
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import counting
from benchmarks.databases import Bare, Cost, StatementCount
from duly.clock import SystemClock
from duly.store.ops.runs import ClaimRuns, Enqueue
from duly.store.sqlite import claim as claiming
from duly.store.sqlite import enqueue as enqueueing
from duly.store.sqlite import settle as settling
from duly.store.sqlite.connection import connect
from duly.store.sqlite.multirow import execute_rows
from duly.store.store_factory import open_store, sqlite_path

_NOW = SystemClock().now

_PILES = {
    "finished": """
        INSERT INTO duly_history
            (id, task, queue, lane, state, outcome, priority, generation, claim_number, attempt,
             retries_used, crashes, created_at, due_at, worker_id, started_at, finished_at,
             arguments)
        WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < :count)
        SELECT printf('01900000-0000-7000-8000-%012x', n), :task, :queue, :lane, 'succeeded',
               'returned', 0, 1, 1, 1, 0, 0, :now - n, :now - n, 'somebody', :now - n, :now - n,
               :arguments
          FROM series
    """,
    "not due": """
        INSERT INTO duly_waiting
            (id, task, queue, lane, priority, created_at, due_at, arguments)
        WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < :count)
        SELECT printf('01900000-0000-7000-8000-%012x', n), :task, :queue, :lane, 0, :now,
               :now + 86400000000 + n, :arguments
          FROM series
    """,
    "unregistered": """
        INSERT INTO duly_waiting
            (id, task, queue, lane, priority, created_at, due_at, parked, arguments)
        WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < :count)
        SELECT printf('01900000-0000-7000-8000-%012x', n), 'nobody:knows', :queue, :lane, 0, :now,
               :now, 'unregistered', :arguments
          FROM series
    """,
    "schedules": """
        INSERT INTO duly_schedules
            (name, source, place, task, queue, lane, priority, arguments, trigger, rules, state,
             next_at, look_at, failures_from, created_at, updated_at)
        WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < :count)
        SELECT 'later-' || n, 'runtime', 'somebody', :task, :queue, :lane, 0, :arguments,
               '{"cron": "0 2 * * *", "tz": "Europe/Paris"}', '{}', 'active',
               :now + 3600000000 + n, :now + 3600000000 + n, :now, :now, :now
          FROM series
    """,
}


class Sqlite:
    """SQLite in the journal mode that duly gives its own files, or in a rollback journal."""

    def __init__(self, *, rollback_journal: bool = False) -> None:
        self._rollback_journal = rollback_journal
        mode = "rollback journal" if rollback_journal else "WAL"
        self.name = f"sqlite ({mode})"
        self.described = f"SQLite {sqlite3.sqlite_version}, {mode}, synchronous=FULL"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Yield the URL of a new file with duly's tables."""
        with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
            file = Path(folder) / "duly.db"
            if self._rollback_journal:
                # The application's own file, whose journal mode duly leaves alone.
                with closing(sqlite3.connect(file)) as connection, connection:
                    connection.execute("CREATE TABLE application_data (id INTEGER PRIMARY KEY)")
            url = f"sqlite:///{file}"
            open_store(url).close()
            with closing(connect(file)) as connection:
                (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            assert mode == ("delete" if self._rollback_journal else "wal"), mode
            yield url

    @contextmanager
    def bare(self, url: str) -> Iterator[Bare]:
        """Open a connection with the settings of duly's own."""
        with closing(connect(sqlite_path(url))) as connection:
            yield BareSqlite(connection)

    @contextmanager
    def counting(self, url: str) -> Iterator[StatementCount]:
        """Trace the statements of the worker's processes to a file next to the store."""
        yield TracedStatements(sqlite_path(url).with_name("statements"))


class TracedStatements:
    """The statements that SQLite's trace hook wrote to a file."""

    method = "SQLite's trace hook in supervisor and child"

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begin = 0.0
        self.environment = {counting.VARIABLE: str(file)}

    def begin(self) -> None:
        """Count from now on."""
        self._begin = time.monotonic()

    def end(self) -> list[str]:
        """Return the statements since `begin`."""
        return counting.read_statements(self._file, self._begin, time.monotonic())


class BareSqlite:
    """The store's statements on one connection, without the store."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._insert_one = enqueueing.SQL["plain"]

    def parameters(self, ops: Sequence[Enqueue]) -> list[Any]:
        now = _NOW()
        return [
            (op.run_id, op.task, op.queue, op.lane, op.priority, now, op.arguments) for op in ops
        ]

    def insert_one(self, parameters: Any) -> None:  # noqa: ANN401 - a row
        # Outside a transaction a statement is its own, so this one call is the whole commit.
        self._cursor.execute(self._insert_one, parameters)

    def insert_many(self, ops: Sequence[Enqueue]) -> None:
        self._cursor.execute("BEGIN IMMEDIATE")
        now = _NOW()
        rest = (0, "", "")  # No expiry, no key, no tags.
        rows = [
            (op.run_id, op.task, op.queue, op.lane, op.priority, now, now, op.arguments, *rest)
            for op in ops
        ]
        execute_rows(self._cursor, enqueueing.SQL, "ready", rows)
        self._cursor.execute("COMMIT")

    def drain(self, worker_id: str, task: str, *, batch: int) -> None:
        tasks = json.dumps([task])
        claims: list[Any] = []
        while True:
            # As in the store, one commit settles the last claims and makes the next ones.
            self._cursor.execute("BEGIN IMMEDIATE")
            self._finish(claims)
            claims = self._claim(worker_id, tasks, batch)
            self._cursor.execute("COMMIT")
            if not claims:
                return

    def _claim(self, worker_id: str, tasks: str, limit: int) -> list[Any]:
        execute, sql = self._cursor.execute, claiming.SQL
        now = _NOW()
        place = {"worker_id": worker_id, "now": now, "claimed_at": now}
        ready = json.loads(execute(sql["ready"], place).fetchone()[0])
        if not ready:
            return []
        queue, lane, _limit = ready[0]
        want = {"queue": queue, "lane": lane, "tasks": tasks, "limit": limit}
        execute(sql["take"], place | want)
        rows = json.loads(execute(sql["taken"], place).fetchone()[0])
        return [row[:2] for row in rows]

    def _finish(self, claims: list[Any]) -> None:
        cursor, sql, now = self._cursor, settling.SQL, _NOW()
        endings = [(run_id, claim_number, 0, "") for run_id, claim_number in claims]
        moved = execute_rows(cursor, sql, "succeed", endings, first=(now,), padded=True)
        assert moved == len(claims)
        if moved:
            cursor.execute(sql["tally"], {"now": now})
            cursor.execute(sql["leave"], {"now": now})

    def is_drained(self) -> bool:
        return not self._one("SELECT EXISTS (SELECT 1 FROM duly_runs)")

    def settle_rate(self) -> float:
        first = self._one("SELECT min(finished_at) FROM duly_history")
        last = self._one("SELECT max(finished_at) FROM duly_history")
        later = self._one("SELECT count(*) FROM duly_history WHERE finished_at > ?", first)
        return float(later / (last - first) * 1e6)

    def runs_per_settle(self) -> float:
        query = "SELECT count(*) * 1.0 / count(DISTINCT finished_at) FROM duly_history"
        return float(self._one(query))

    def results(self, task: str) -> list[str]:
        query = "SELECT result FROM duly_history WHERE task = ?"
        return [result for (result,) in self._cursor.execute(query, (task,))]

    def pile_up(self, what: str, count: int) -> None:
        place = {
            "count": count,
            "now": _NOW(),
            "task": "benchmarks.tasks:noop",
            "queue": "default",
            "lane": "loop",
            "arguments": '[[],{"number":1}]',
        }
        self._cursor.execute(_PILES[what], place)

    def claim_cost(self, op: ClaimRuns) -> Cost:
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        self._cursor.execute("BEGIN IMMEDIATE")
        self._connection.set_progress_handler(count, 1)
        try:
            now = _NOW()
            claims = claiming.claim(self._cursor, op, claiming.ClaimTime(now, now))
        finally:
            self._connection.set_progress_handler(None, 1)
            self._connection.rollback()
        assert len(claims) == sum(want.limit for want in op.wants)
        return {"steps": steps}

    def _one(self, sql: str, *parameters: Any) -> Any:  # noqa: ANN401 - one value of any type
        return self._cursor.execute(sql, parameters).fetchone()[0]

"""The bare loops on PostgreSQL, with psycopg, on a private cluster or a given server."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql

from benchmarks.databases import Bare, Cost, StatementCount
from benchmarks.tasks import noop
from benchmarks.workload import LANE, QUEUE
from duly.limits import TRANSACTION_BYTES
from duly.store.ops.runs import ClaimRuns, Enqueue
from duly.store.postgres.address import Address
from duly.store.postgres.arrays import numbers, optional_texts, texts
from duly.store.postgres.claim import SQL as CLAIM
from duly.store.postgres.connection import PostgresSession, connect
from duly.store.postgres.enqueue import SQL as ENQUEUE
from duly.store.postgres.session_settings import HOT
from duly.store.postgres.settle import SQL as SETTLE
from duly.store.store_factory import open_store
from tests.servers.kinds import POSTGRES_URL_VARIABLE
from tests.servers.postgres import PostgresEndpoint, PostgresServer, database_of, find_binaries

_PILES = {
    "finished": """
        INSERT INTO duly_history
            (id, task, queue, lane, state, outcome, priority, generation, claim_number, attempt,
             retries_used, crashes, created_at, due_at, worker_id, started_at, finished_at,
             arguments)
        SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, %(task)s, %(queue)s,
               %(lane)s, 'succeeded', 'returned', 0, 1, 1, 1, 0, 0, duly_now(), duly_now(),
               'somebody', duly_now(), duly_now(), %(arguments)s
          FROM generate_series(1, %(count)s) AS n
    """,
    "not due": """
        INSERT INTO duly_waiting
            (id, task, queue, lane, priority, created_at, due_at, arguments)
        SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, %(task)s, %(queue)s,
               %(lane)s, 0, duly_now(), duly_now() + interval '1 day' + n * interval '1 ms',
               %(arguments)s
          FROM generate_series(1, %(count)s) AS n
    """,
    "unregistered": """
        INSERT INTO duly_waiting
            (id, task, queue, lane, priority, created_at, due_at, parked, arguments)
        SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'nobody:knows',
               %(queue)s, %(lane)s, 0, duly_now(), duly_now(), 'unregistered', %(arguments)s
          FROM generate_series(1, %(count)s) AS n
    """,
    "schedules": """
        INSERT INTO duly_schedules
            (name, source, place, task, queue, lane, priority, arguments, trigger, rules, state,
             next_at, look_at, failures_from, created_at, updated_at)
        SELECT 'later-' || n, 'runtime', 'somebody', %(task)s, %(queue)s, %(lane)s, 0,
               %(arguments)s, '{"cron": "0 2 * * *", "tz": "Europe/Paris"}', '{}', 'active',
               duly_now() + interval '1 hour' + n * interval '1 ms',
               duly_now() + interval '1 hour' + n * interval '1 ms', duly_now(), duly_now(),
               duly_now()
          FROM generate_series(1, %(count)s) AS n
    """,
}
_DEAD = """
    INSERT INTO duly_runs (id, task, queue, lane, priority, created_at, due_at, arguments)
    SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, %(task)s, %(queue)s,
           %(lane)s, 0, duly_now(), duly_now(), '[]'
      FROM generate_series(1, %(count)s) AS n
"""
_RATE = """
    SELECT (count(*) FILTER (WHERE finished_at > first))::float
           / extract(epoch FROM max(finished_at) - min(first))::float
      FROM duly_history, (SELECT min(finished_at) AS first FROM duly_history) AS begin
"""
_SETTINGS = {"max_connections": "500"}
"""The largest fleet of workers has about seven connections each."""
_LOGGED = re.compile(r"LOG:  (?:statement|execute [^:]*):\s*(.*)")
_PLACEHOLDER = re.compile(r"%\((\w+)\)s")


class Postgres:
    """One server. Every figure uses its own databases there."""

    def __init__(self, server: PostgresEndpoint) -> None:
        self._server = server
        self.name = "postgres"
        private = isinstance(server, PostgresServer)
        kind = "private cluster, fsync on" if private else f"as {POSTGRES_URL_VARIABLE} names it"
        self.described = f"PostgreSQL {server.version}, {kind}"

    @classmethod
    @contextmanager
    def started(cls, version: int | None = None) -> Iterator[Self]:
        """Use the server from the environment, or start one of the given or the newest version."""
        if url := os.environ.get(POSTGRES_URL_VARIABLE):
            yield cls(PostgresEndpoint(url))
            return
        found = find_binaries()
        assert found, "no PostgreSQL server programs were found; see `make setup`"
        with PostgresServer(found[version or max(found)], settings=_SETTINGS) as server:
            yield cls(server)

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Yield the URL of a new database with duly's tables."""
        url = self._server.create_database()
        open_store(url).close()
        yield url
        self._server.drop_database(url)

    @contextmanager
    def bare(self, url: str) -> Iterator[Bare]:
        """Open a connection with the settings of duly's own."""
        with closing(connect(Address(url), HOT)) as session:
            yield BarePostgres(session)

    @contextmanager
    def counting(self, url: str) -> Iterator[StatementCount]:
        """Let the server log the statements in this database, or at least count transactions."""
        if not isinstance(self._server, PostgresServer):
            yield CountedTransactions(self._server.url("postgres"), database_of(url))
            return
        with psycopg.connect(self._server.url("postgres"), autocommit=True) as connection:
            name = sql.Identifier(database_of(url))
            connection.execute(sql.SQL("ALTER DATABASE {} SET log_statement = 'all'").format(name))
        yield LoggedStatements(self._server.log)


@contextmanager
def dead_runs(url: str, count: int) -> Iterator[None]:
    """Leave dead entries in the index that claims walk, and hold a snapshot that keeps them."""
    with (
        closing(psycopg.connect(url)) as holder,
        closing(psycopg.connect(url, autocommit=True)) as connection,
    ):
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1 FROM duly_runs")
        task = {"task": noop.name, "queue": QUEUE, "lane": LANE, "count": count}
        connection.execute(_DEAD, task)
        connection.execute("DELETE FROM duly_runs")
        yield


class LoggedStatements:
    """Statements as the server logged them, BEGIN and COMMIT included."""

    method = "log_statement = all"

    def __init__(self, log: Path) -> None:
        self._log = log
        self._begin = 0
        self.environment: dict[str, str] = {}

    def begin(self) -> None:
        """Count from now on."""
        self._begin = self._log.stat().st_size

    def end(self) -> list[str]:
        """Return the statements since `begin`."""
        written = self._log.read_bytes()[self._begin :].decode(errors="replace")
        return _LOGGED.findall(written)


class CountedTransactions:
    """Counts the transactions of one database if the log of its server cannot be read."""

    method = "transactions in pg_stat_database"

    def __init__(self, url: str, database: str) -> None:
        self._url = url
        self._database = database
        self._begin = 0
        self.environment: dict[str, str] = {}

    def begin(self) -> None:
        """Count from now on."""
        self._begin = self._count()

    def end(self) -> list[str]:
        """Return one item for each transaction since `begin`."""
        return ["transaction"] * (self._count() - self._begin)

    def _count(self) -> int:
        query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
        with psycopg.connect(self._url) as connection:
            row = connection.execute(query, [self._database]).fetchone()
        return 0 if row is None else int(row[0])


class BarePostgres:
    """The store's statements on one connection, without the store."""

    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def parameters(self, ops: Sequence[Enqueue]) -> list[Any]:
        return [
            {
                "id": op.run_id,
                "task": op.task,
                "queue": op.queue,
                "lane": op.lane,
                "priority": op.priority,
                "expires": op.expires,
                "arguments": op.arguments,
            }
            for op in ops
        ]

    def insert_one(self, parameters: Any) -> None:  # noqa: ANN401 - a row
        self._session.execute(ENQUEUE["ready_one"], parameters)

    def insert_many(self, ops: Sequence[Enqueue]) -> None:
        columns = {
            "ids": texts([op.run_id for op in ops]),
            "tasks": texts([op.task for op in ops]),
            "queues": texts([op.queue for op in ops]),
            "lanes": texts([op.lane for op in ops]),
            "priorities": numbers(op.priority for op in ops),
            "arguments": texts([op.arguments for op in ops]),
            "expires": None,
        }
        self._session.execute(ENQUEUE["ready"], columns)

    def drain(self, worker_id: str, task: str, *, batch: int) -> None:
        want = _want(worker_id, (task,), (None,), ("loop",), (batch,))
        while rows := self._claim(want):
            self._finish(rows)

    def _claim(self, want: dict[str, Any]) -> list[tuple[Any, ...]]:
        return self._session.execute(CLAIM["take"], want).fetchall()

    def _finish(self, rows: list[tuple[Any, ...]]) -> None:
        # Sorted, because all statements lock rows in this order.
        claims = sorted(row[:2] for row in rows)
        count = len(claims)
        endings = {
            "ids": texts([run_id for run_id, _ in claims]),
            "claim_numbers": numbers(claim_number for _, claim_number in claims),
            "states": texts(["succeeded"] * count),
            "causes": None,
            "outcomes": texts(["returned"] * count),
            "elapsed": numbers([0] * count),
            "results": None,
            "errors": None,
            "tracebacks": None,
            "fingerprints": None,
        }
        moved = self._session.execute(SETTLE["finish"], endings).fetchone()
        assert moved == (count,)

    def is_drained(self) -> bool:
        return not self._one("SELECT EXISTS (SELECT 1 FROM duly_runs)")

    def settle_rate(self) -> float:
        return float(self._one(_RATE))

    def runs_per_settle(self) -> float:
        return float(
            self._one("SELECT count(*)::float / count(DISTINCT finished_at) FROM duly_history")
        )

    def results(self, task: str) -> list[str]:
        query = "SELECT result FROM duly_history WHERE task = %s"
        return [result for (result,) in self._session.execute(query, [task])]

    def pile_up(self, what: str, count: int) -> None:
        place = {
            "count": count,
            "task": "benchmarks.tasks:noop",
            "queue": "default",
            "lane": "loop",
            "arguments": '[[],{"number":1}]',
        }
        self._session.execute(_PILES[what], place)

    def claim_cost(self, op: ClaimRuns) -> Cost:
        """Explain the generic plan of the prepared statement, as the store's connections run it."""
        self._session.execute("VACUUM ANALYZE")
        queues, lanes, limits = zip(*op.wants, strict=True)
        values = _want(op.worker_id, op.tasks, queues, lanes, limits)
        names = list(values)
        text = _PLACEHOLDER.sub(lambda match: f"${names.index(match[1]) + 1}", CLAIM["take"])
        self._session.execute(f"PREPARE measured AS {text}".encode())
        literals = sql.SQL(", ").join(map(sql.Literal, values.values()))
        explain = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE measured ({})")
        self._session.execute("BEGIN")
        (plan,) = self._one(explain.format(literals))
        self._session.execute("ROLLBACK")
        root = plan["Plan"]
        return {"buffers": root["Shared Hit Blocks"] + root["Shared Read Blocks"]}

    def _one(self, query: Any, *parameters: Any) -> Any:  # noqa: ANN401 - one value of any type
        row = self._session.execute(query, parameters).fetchone()
        assert row is not None
        return row[0]


def _want(
    worker_id: str,
    tasks: Sequence[str],
    queues: Sequence[str | None],
    lanes: Sequence[str],
    limits: Sequence[int],
) -> dict[str, Any]:
    return {
        "worker_id": worker_id,
        "after_queue": "",
        "tasks": texts(tasks),
        "last": "0",
        "queues": optional_texts(queues),
        "lanes": texts(lanes),
        "limits": numbers(limits),
        "bytes": str(TRANSACTION_BYTES),
        "excluded": "{}",
    }

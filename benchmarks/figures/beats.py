"""Measures the flushes and the time of durable beats, compared to asynchronous commits."""

import time
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import psycopg

from benchmarks.databases import Database
from benchmarks.report import Figure, at_least, at_most
from benchmarks.sizes import Sizes
from duly.limits import LEASE_SECONDS
from duly.store.ops.upkeep import RegisterWorker
from duly.store.postgres.address import Address
from duly.store.postgres.arrays import texts
from duly.store.postgres.heartbeats import SQL, PostgresHeartbeats
from duly.store.store_factory import open_store

_ASYNCHRONOUS = SQL["beat"].replace("'on'", "'off'")
_FLUSHES = "SELECT pg_catalog.sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'"
_FLUSHES_BEFORE_18 = "SELECT wal_sync FROM pg_stat_wal"
_FIRST_WITH_IO_OF_WAL = 180_000
_OTHERS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


class _Beats(NamedTuple):
    milliseconds: float
    flushes: float


class _Beating(PostgresHeartbeats):
    """Beats on its own connection, and reads nothing."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, lambda _query: [])


class _AsynchronousPulse(_Beating):
    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._settings = self._settings | {"synchronous_commit": "off"}

    def beat(self, worker_ids: Sequence[str]) -> set[str]:
        return {row[0] for row in self._ask(_ASYNCHRONOUS, (texts(worker_ids),))}


def measure(database: Database, sizes: Sizes) -> list[Figure]:
    """Beat once for each supervisor. Beats on SQLite are not commits, so they are not measured.

    The supervisors beat one after the other, because in real fleets their beats are spread over
    seconds. So no two beats share a flush.
    """
    figures: list[Figure] = []
    if database.name != "postgres":
        return figures
    for supervisors, children in sizes.beating_fleets:
        durable, asynchronous = [], []
        for _ in range(sizes.rounds):
            asynchronous.append(_beat(database, supervisors, children, _AsynchronousPulse))
            durable.append(_beat(database, supervisors, children, _Beating))
        name = f"{supervisors} supervisors of {children}"
        without = sum(beats.flushes for beats in asynchronous) / len(asynchronous)
        figures += [
            Figure(
                f"beat, {name}",
                database.name,
                "ms",
                [beats.milliseconds for beats in durable],
                [beats.milliseconds for beats in asynchronous],
                (),
                "bare: asynchronous commits",
            ),
            Figure(
                f"flushes per beat, {name}",
                database.name,
                "",
                [beats.flushes for beats in durable],
                (),
                (at_least(0.9), at_most(1.1)),
                f"asynchronous commits: {without:.3f}",
            ),
        ]
    return figures


def _beat(database: Database, supervisors: int, children: int, kind: type[_Beating]) -> _Beats:
    """Let each supervisor beat once for its children; return what one beat took."""
    with database.fresh() as url, closing(psycopg.connect(url, autocommit=True)) as watcher:
        fleet = _register(url, supervisors, children)
        _wait_until_alone(watcher)
        before = _flushes(watcher)
        took = _beat_in_turn(kind(Address(url)), fleet)
        # A backend reports what it has flushed when it ends.
        _wait_until_alone(watcher)
        flushes = _flushes(watcher) - before
    return _Beats(took / supervisors * 1e3, flushes / supervisors)


def _register(url: str, supervisors: int, children: int) -> list[list[str]]:
    """Register live workers, and return their ids by supervisor."""
    fleet = [
        [f"worker-{number}-{child}" for child in range(children)] for number in range(supervisors)
    ]
    with closing(open_store(url)) as store:
        store.apply(
            [
                RegisterWorker(worker_id, "host", 1, LEASE_SECONDS, "[]", "[]")
                for part in fleet
                for worker_id in part
            ]
        )
    return fleet


def _beat_in_turn(pulse: PostgresHeartbeats, fleet: list[list[str]]) -> float:
    """Beat for one supervisor after the other. Return the seconds of all beats."""
    with closing(pulse):
        pulse.is_watcher([], 0.0)  # Connects.
        began = time.perf_counter()
        for worker_ids in fleet:
            assert pulse.beat(worker_ids) == set(worker_ids)
        return time.perf_counter() - began


def _wait_until_alone(watcher: psycopg.Connection) -> None:
    deadline = time.monotonic() + 60
    while watcher.execute(_OTHERS).fetchone() != (0,):
        assert time.monotonic() < deadline, "connections to the database stay open"
        time.sleep(0.01)


def _flushes(watcher: psycopg.Connection) -> int:
    is_new = watcher.info.server_version >= _FIRST_WITH_IO_OF_WAL
    watcher.execute("SELECT pg_catalog.pg_stat_clear_snapshot()")
    row = watcher.execute(_FLUSHES if is_new else _FLUSHES_BEFORE_18).fetchone()
    assert row is not None
    return int(row[0])

"""Measures two builds in turns, each time on a new database of the same server."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison.builds import Build
from benchmarks.comparison.ratios import Comparison
from tests.servers.postgres import PostgresEndpoint


@dataclass(frozen=True, slots=True)
class Store:
    """A kind of database; each measurement gets an empty one, which the build itself sets up."""

    name: str
    empty_database: Callable[[], AbstractContextManager[str]]


def compare(
    base: Build, head: Build, *, workload: str, amount: int, store: Store, rounds: int
) -> Comparison:
    """Measure both builds in every round; the first one of a round is the second of the next."""
    print(f"measuring {workload} on {store.name} …", file=sys.stderr, flush=True)
    speeds: dict[str, list[float]] = {"base": [], "head": []}
    turn = [("base", base), ("head", head)]
    for _ in range(rounds):
        for side, build in turn:
            with store.empty_database() as url:
                speeds[side].append(build.measure(workload, amount, url=url))
        turn.reverse()
    return Comparison(workload, store.name, base=speeds["base"], head=speeds["head"])


def sqlite() -> Store:
    """Return SQLite, each database a new file."""
    return Store("sqlite", _sqlite_file)


def postgres(server: PostgresEndpoint) -> Store:
    """Return PostgreSQL, all databases on one server."""
    return Store("postgres", lambda: _postgres_database(server))


@contextmanager
def _sqlite_file() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="duly-comparison-") as folder:
        yield f"sqlite:///{Path(folder) / 'duly.db'}"


@contextmanager
def _postgres_database(server: PostgresEndpoint) -> Iterator[str]:
    url = server.create_database()
    try:
        yield url
    finally:
        server.drop_database(url)

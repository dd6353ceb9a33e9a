"""Measures how fast callers commit their own transactions, by how these notify workers."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from benchmarks.databases import Database
from benchmarks.report import Figure, at_least
from benchmarks.sizes import Sizes
from benchmarks.tasks import app, noop

_WARM_UP = 0.2
"""A share of the measured time, after which each thread has connected and committed."""


def measure(database: Database, sizes: Sizes) -> list[Figure]:
    """Commit from many threads at once: with NOTIFY inside, a hint after the commit, or neither.

    All three use sessions of SQLAlchemy. One that is bound to a Connection has no hook after the
    commit, so that its transactions carry the NOTIFY.
    """
    if not database.name.startswith("postgres"):
        return []
    rates: dict[str, list[float]] = {"inside": [], "after": [], "never": []}
    with database.fresh() as url, _engine(url, sizes.committing_threads) as engine:
        app.use_url(url)
        noop.enqueue(0)
        for _ in range(sizes.rounds):
            rates["inside"].append(_rate(engine, sizes, is_bound=True))
            rates["after"].append(_rate(engine, sizes))
            rates["never"].append(_rate(engine, sizes, wake=False))
        app.close()
    note = f"{sizes.committing_threads} threads; bare: NOTIFY inside the transaction"
    return [
        Figure(name, database.name, "commits/s", rates[way], rates["inside"], targets, note)
        for name, way, targets in (
            ("hint after commit", "after", (at_least(1.2, "ratio"),)),
            ("wake=False", "never", ()),
        )
    ]


@contextmanager
def _engine(url: str, threads: int) -> Iterator[Engine]:
    driver = url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(driver, pool_size=threads)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id bigserial PRIMARY KEY, amount integer)"))
    try:
        yield engine
    finally:
        engine.dispose()


def _rate(engine: Engine, sizes: Sizes, *, is_bound: bool = False, wake: bool = True) -> float:
    """Return how many transactions of all threads commit in a second."""
    done = [0] * sizes.committing_threads
    stop = threading.Event()

    def commit_some(place: int) -> None:
        with engine.connect() if is_bound else nullcontext(engine) as bind:
            while not stop.is_set():
                with Session(bind) as session:
                    session.execute(text("INSERT INTO orders (amount) VALUES (1)"))
                    noop.using(connection=session, wake=wake).enqueue(1)
                    session.commit()
                done[place] += 1

    with _running(commit_some, len(done), stop):
        time.sleep(_WARM_UP * sizes.committing_seconds)
        began, before = time.perf_counter(), sum(done)
        time.sleep(sizes.committing_seconds)
        return (sum(done) - before) / (time.perf_counter() - began)


@contextmanager
def _running(work: Callable[[int], None], count: int, stop: threading.Event) -> Iterator[None]:
    threads = [threading.Thread(target=work, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()

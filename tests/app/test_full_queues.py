"""Every enqueue method raises `QueueFull`."""

import asyncio
import sqlite3

import psycopg
import pytest

from duly import BadOption, Duly, QueueFull


@pytest.fixture
def app(store_url):
    """An application whose queue accepts two runs."""
    made = Duly(store_url)
    made.queues.limit("default", max_size=2)
    yield made
    made.close()


@pytest.fixture
def work(app):
    @app.task(name="work")
    def work(number: int) -> None: ...

    return work


def test_every_enqueue_method_is_refused_when_a_queue_is_full(app, work):
    app.enqueue_many(work.call(number) for number in range(2))

    with pytest.raises(QueueFull, match="try again later, start more workers, or raise the limit"):
        work.enqueue(2)
    with pytest.raises(QueueFull):
        app.enqueue_many([work.call(2)])
    with pytest.raises(QueueFull):
        asyncio.run(work.aenqueue(2))
    with pytest.raises(QueueFull):
        work.using(key="k").enqueue(2)
    app.worker().drain(timeout=20)
    app.store.queue_capacity.forget()
    work.enqueue(3)
    assert app.store.count_runs().accepted == 3


def test_a_callers_transaction_continues_after_a_full_queue_refused_a_run(app, work, store_url):
    is_sqlite = store_url.startswith("sqlite")
    mine = sqlite3.connect(app.store.path) if is_sqlite else psycopg.connect(store_url)
    mine.execute("CREATE TABLE orders (id INTEGER)")
    first = work.using(connection=mine, key="k").enqueue(1)
    work.using(connection=mine).enqueue(2)

    with pytest.raises(QueueFull):
        work.using(connection=mine).enqueue(3)
    again = work.using(connection=mine, key="k").enqueue(1)
    mine.execute("INSERT INTO orders VALUES (1)")
    mine.commit()
    mine.close()

    assert again.id == first.id
    assert app.store.count_runs().accepted == 2
    assert list(app.store.audit(10)) == []


def test_an_invalid_queue_bound_is_refused(app):
    for wrong in (0, -1, 1.5, True, 10**9):
        with pytest.raises(BadOption, match="max_size"):
            app.queues.limit("default", max_size=wrong)
    with pytest.raises(BadOption, match="pass a limit"):
        app.queues.limit("default")

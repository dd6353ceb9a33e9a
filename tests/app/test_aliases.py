"""A task renamed with `aliases=` keeps its keys and shares its limit with the old name."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from duly import Duly, KeyConflict
from duly.errors import RunNotFinal
from duly.task import Task

SECONDS = 20
OLD, NEW = "shop:charge", "shop:charge_order"


def charge(order: int) -> int:
    if order < 0:
        raise ValueError(order)
    return order


@pytest.fixture
def before(store_url: str) -> Iterator[Duly]:
    """The application of the version with the old name."""
    app = Duly(store_url)
    yield app
    app.close()


@pytest.fixture
def old(before: Duly) -> Task[..., Any]:
    return before.task(name=OLD)(charge)


@pytest.fixture
def new(app: Duly) -> Task[..., Any]:
    return app.task(name=NEW, aliases=(OLD,))(charge)


@contextmanager
def connection_to(url: str) -> Iterator[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            yield connection
    else:
        with psycopg.connect(url) as connection:
            yield connection


def test_a_key_taken_before_the_rename_finds_its_run(before, old, new):
    first = old.using(key="42").enqueue(42)
    before.worker().drain(timeout=SECONDS)

    again = new.using(key="42").enqueue(42)

    assert (again.id, again.new) == (first.id, False)
    assert new.using(key="43").enqueue(43).new


def test_a_key_with_other_arguments_conflicts_across_the_rename(old, new):
    old.using(key="42").enqueue(42)

    with pytest.raises(KeyConflict):
        new.using(key="42").enqueue(1)


def test_one_batch_finds_the_keys_of_both_names(app, old, new):
    first = old.using(key="1").enqueue(1)
    second = new.using(key="2").enqueue(2)

    found = app.enqueue_many(new.using(key=str(n)).call(n) for n in (1, 2, 3, 3))

    assert [run.id for run in found[:2]] == [first.id, second.id]
    assert [run.new for run in found] == [False, False, True, False]
    assert found[2].id == found[3].id


def test_a_key_is_found_across_the_rename_in_a_callers_transaction(app, store_url, old, new):
    first = old.using(key="42").enqueue(42)

    with connection_to(store_url) as connection:
        again = new.using(key="42", connection=connection).enqueue(42)
        other = new.using(key="43", connection=connection).enqueue(43)
        with pytest.raises(KeyConflict):
            new.using(key="42", connection=connection).enqueue(1)
        connection.commit()

    assert (again.id, again.new) == (first.id, False)
    assert other.new
    assert new.using(key="43").enqueue(43).id == other.id


@pytest.mark.stores("postgres-18")
def test_a_key_is_found_across_the_rename_in_an_asyncpg_transaction(store_url, old, new):
    async def enqueue() -> list[bool]:
        connection = await asyncpg.connect(store_url)
        try:
            async with connection.transaction():
                bound = [new.using(key=key, connection=connection) for key in ("42", "43")]
                return [(await each.aenqueue(42)).new for each in bound]
        finally:
            await connection.close()

    old.using(key="42").enqueue(42)

    assert asyncio.run(enqueue()) == [False, True]


def test_a_key_with_unique_active_is_free_when_the_run_of_the_old_name_has_ended(app, old, new):
    first = old.using(key="42", unique="active").enqueue(42)
    assert new.using(key="42", unique="active").enqueue(42).id == first.id

    app.worker().drain(timeout=SECONDS)

    assert new.using(key="42", unique="active").enqueue(42).new


def test_a_retry_is_refused_while_a_run_of_the_new_name_has_the_key(before, app, old, new):
    failed = old.using(key="k", unique="active").enqueue(-1)
    before.worker().drain(timeout=SECONDS)
    holder = new.using(key="k", unique="active").enqueue(1)

    with pytest.raises(RunNotFinal, match=holder.id):
        app.runs.get(failed.id).retry(reason="again")


@pytest.mark.parametrize("name", [OLD, NEW])
def test_resetting_a_key_frees_it_under_all_names(app, old, new, name):
    first = old.using(key="42").enqueue(42)

    assert app.reset_key(name, "42")

    again = new.using(key="42").enqueue(42)
    assert again.new
    assert again.id != first.id
    assert app.reset_key(new, "42")
    assert not app.reset_key(new, "42")


def test_two_versions_that_know_both_names_share_keys_in_both_directions(before, new):
    swapped = before.task(name=OLD, aliases=(NEW,))(charge)

    first = new.using(key="1").enqueue(1)
    second = swapped.using(key="2").enqueue(2)

    assert swapped.using(key="1").enqueue(1).id == first.id
    assert new.using(key="2").enqueue(2).id == second.id


def test_why_names_the_run_of_the_old_name_that_holds_the_limit(before, app):
    found: list[str] = []
    limited = before.task(name=OLD, limit=1)(charge)

    @app.task(name=NEW, aliases=(OLD,), limit=1)
    def look(order: int) -> None:
        if order == 1:
            found.append(waiting.why().sentence)

    holder = limited.enqueue(1)
    waiting = look.enqueue(2)
    app.worker().drain(timeout=SECONDS)

    assert f"1 of 1 are running: run {holder.id}" in found[0]

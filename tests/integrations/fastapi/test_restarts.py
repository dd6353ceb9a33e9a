"""Runs that are queued or running when an application ends, and their fate at the next start."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from duly import Duly
from duly.integrations.fastapi import duly_lifespan
from tests.servers.processes import wait_until

SOON = 20.0


@dataclass(frozen=True)
class Money:
    """A type of the application."""

    amount: Decimal
    currency: str


TYPED = (
    UUID("12345678-1234-5678-1234-567812345678"),
    date(2025, 3, 30),
    datetime(2025, 3, 30, 1, 30, tzinfo=UTC),
    timedelta(seconds=1.5),
    Decimal("0.10"),
    b"\x00\xff",
)


@pytest.fixture
def duly(store_url) -> Iterator[Duly]:
    with closing(Duly(store_url)) as duly:
        yield duly


@pytest.mark.timeout(240)
def test_the_limit_of_concurrent_runs_holds_after_a_restart(duly: Duly):
    """500 runs are put back at a stop. A process then runs four of them at once."""
    may_continue = threading.Event()
    inside, most = 0, 0

    @duly.task(name="visit")
    async def visit() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            while not may_continue.is_set():  # noqa: ASYNC110 - the test's own thread sets it
                await asyncio.sleep(0.25)  # 500 runs share the loop.
        finally:
            inside -= 1

    runs = duly.enqueue_many(visit.call() for _ in range(500))
    with TestClient(FastAPI(lifespan=duly_lifespan(duly, async_limit=500, grace=0))):
        wait_until(lambda: inside == 500, seconds=3 * SOON, what="all runs execute")
    assert {run.refresh().state for run in runs} == {"queued"}
    most = 0
    with TestClient(FastAPI(lifespan=duly_lifespan(duly, async_limit=4))):
        wait_until(lambda: inside == 4, seconds=SOON, what="four runs execute again")
        may_continue.set()
        wait_until(
            lambda: not duly.runs.list(state=("queued", "running"), limit=1),
            seconds=3 * SOON,
            what="all runs have been executed",
        )

    assert most == 4
    assert {run.refresh().state for run in runs} == {"succeeded"}


@pytest.mark.stores("sqlite-wal")
def test_arguments_are_of_the_same_types_after_a_restart(store_url):
    def define(duly: Duly):
        @duly.task(name="take")
        def take(
            number: UUID,
            day: date,
            moment: datetime,
            pause: timedelta,
            price: Decimal,
            raw: bytes,
            *,
            paid: Money,
        ) -> None:
            taken.append((number, day, moment, pause, price, raw, paid))

        return take

    taken: list[tuple[object, ...]] = []
    paid = Money(Decimal("19.90"), "EUR")
    with closing(Duly(store_url)) as before:
        define(before).enqueue(*TYPED, paid=paid)
    with closing(Duly(store_url)) as after:
        define(after)
        with TestClient(FastAPI(lifespan=duly_lifespan(after))):
            wait_until(lambda: bool(taken), seconds=SOON, what="the task has run")

    assert taken == [(*TYPED, paid)]
    assert [type(each) for each in taken[0]] == [type(each) for each in (*TYPED, paid)]


def test_a_run_that_was_cancelled_before_the_start_never_runs(duly: Duly):
    ran = []

    @duly.task(name="one")
    def one(number: int) -> None:
        ran.append(number)

    cancelled, other = one.enqueue(1), one.enqueue(2)
    assert cancelled.cancel() == "cancelled"
    with TestClient(FastAPI(lifespan=duly_lifespan(duly))):
        other.result(timeout=SOON)

    assert ran == [2]
    assert cancelled.refresh().state == "cancelled"


def test_an_application_can_be_started_repeatedly(duly: Duly):
    @duly.task(name="one")
    async def one() -> int:
        return 1

    api = FastAPI(lifespan=duly_lifespan(duly))
    for _ in range(3):
        with TestClient(api):
            assert one.enqueue().result(timeout=SOON) == 1

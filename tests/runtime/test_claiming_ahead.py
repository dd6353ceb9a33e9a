"""A worker claims ahead only what it will soon start; the rest is left to others."""

import threading
from collections.abc import Iterator
from time import monotonic

import pytest

from duly import Duly
from tests.servers.processes import wait_until

LONG_SECONDS = 0.5


@pytest.fixture
def other(store_url: str) -> Iterator[Duly]:
    """The same application in another process, as far as the store can tell."""
    other = Duly(store_url)
    yield other
    other.close()


def test_a_worker_full_of_long_bodies_leaves_runs_to_an_idle_one(app, other):
    go_on = threading.Event()
    began: list[float] = []

    @app.task(name="long")
    def wait() -> None:
        began.append(monotonic())
        go_on.wait(60)

    def answer(number: int) -> int:
        return number

    short = app.task(name="short")(answer)
    other.task(name="short")(answer)
    with app.worker(concurrency=4):
        # Its bodies were short so far, so it claims ahead.
        for run in app.enqueue_many(short.call(number) for number in range(200)):
            run.result(timeout=30)
        for _ in range(4):
            wait.enqueue()
        wait_until(
            lambda: len(began) == 4 and monotonic() - max(began) > LONG_SECONDS,
            seconds=30,
            what="all slots to have long bodies",
        )
        try:
            with other.worker(concurrency=1):
                runs = [short.enqueue(number) for number in range(20)]
                results = [run.result(timeout=30) for run in runs]
        finally:
            go_on.set()

    assert results == list(range(20))
    # A run that the full worker had claimed, too, would have been claimed twice.
    assert [run.refresh().record.claim_number for run in runs] == [1] * 20

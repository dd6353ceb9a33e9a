"""A worker claims ahead only what it will soon start; the rest is left to others."""

import threading
from collections.abc import Iterable, Iterator
from time import monotonic

import pytest

from duly import Duly
from duly.core.record import Claim
from duly.limits import PAYLOAD_BYTES, TRANSACTION_BYTES
from duly.registry import Definition
from duly.worker.inflight import InFlightClaim, InFlightClaims
from tests.servers.processes import wait_until

LONG_SECONDS = 0.5
SLOTS = 4


@pytest.fixture
def other(store_url: str) -> Iterator[Duly]:
    """The same application in another process, as far as the store can tell."""
    other = Duly(store_url)
    yield other
    other.close()


def test_a_worker_claims_large_arguments_in_small_portions_and_runs_them_all(app, monkeypatch):
    answers: list[list[Claim]] = []
    in_hand: list[int] = []
    take = InFlightClaims.take

    def noted(
        hand: InFlightClaims, claims: Iterable[tuple[Claim, Definition]]
    ) -> list[InFlightClaim]:
        taken = take(hand, list(claims))
        answers.append([held.claim for held in taken])
        live = [held for held in hand._held.values() if not held.ended]
        in_hand.append(sum(len(held.claim.arguments) for held in live))
        return taken

    monkeypatch.setattr(InFlightClaims, "take", noted)

    @app.task(name="measure")
    def measure(text: str) -> int:
        return len(text)

    size = PAYLOAD_BYTES - 100
    # The worker has met small arguments first, and so claims as many runs as it ever does.
    app.enqueue_many(measure.call("x") for _ in range(1000))
    runs = app.enqueue_many(measure.call("x" * size) for _ in range(200))
    with app.worker(concurrency=SLOTS):
        results = [run.result(timeout=60) for run in runs]

    sizes = [sum(len(claim.arguments) for claim in claims) for claims in answers]
    assert results == [size] * 200
    assert max(sizes) <= TRANSACTION_BYTES + PAYLOAD_BYTES
    # One claim ahead may begin with slightly less than the bound in flight. Runs for free slots are
    # claimed whatever is in flight.
    assert max(in_hand) <= 2 * TRANSACTION_BYTES + PAYLOAD_BYTES + SLOTS * PAYLOAD_BYTES


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

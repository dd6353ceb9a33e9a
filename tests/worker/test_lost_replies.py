"""A commit whose reply got lost is neither repeated blindly nor forgotten."""

import threading

import pytest

from duly import Duly, StoreUnavailable, current, faultpoints
from tests.servers.processes import wait_until
from tests.store.conformance.stores import opened_tables


class Strike:
    """Raises at its first few hits, as if the connection broke right then."""

    def __init__(self, times: int) -> None:
        self._left = times
        self._lock = threading.Lock()
        self.struck = 0

    def __call__(self) -> None:
        with self._lock:
            if self._left == 0:
                return
            self._left -= 1
            self.struck += 1
        message = "the reply got lost"
        raise StoreUnavailable(message)


@pytest.mark.parametrize(
    "point",
    [
        "claim.before_commit",
        "claim.after_commit",
        "settle.before_commit",
        "settle.after_commit",
    ],
)
def test_every_run_runs_once_whatever_reply_was_lost(app: Duly, point):
    seen: list[tuple[str, int]] = []

    @app.task(name="plain")
    def plain(number: int) -> int:
        seen.append(("plain", number))
        return number

    @app.task(name="coroutine")
    async def coroutine(number: int) -> int:
        seen.append(("coroutine", number))
        return number

    strike = Strike(3)
    with app.worker(concurrency=2):
        plain.enqueue(1000).result(timeout=20)
        faultpoints.arm(point, strike)
        runs = app.enqueue_many(
            task.call(number) for number in range(15) for task in (plain, coroutine)
        )
        wait_until(
            lambda: set(app.store.get_states([run.id for run in runs]).values()) == {"succeeded"},
            seconds=40,
            what="all have succeeded",
        )

    assert strike.struck == 3
    expected = [(kind, n) for n in range(15) for kind in ("plain", "coroutine")]
    assert sorted(seen[1:]) == sorted(expected)
    for run in runs:
        assert [attempt.outcome for attempt in run.attempts()] == ["returned"]
        assert (run.refresh().record.attempt, run.record.crashes) == (1, 0)


def test_a_transaction_whose_commit_went_through_is_not_run_again(app, store_url):
    assert app.runs.list() == []
    with opened_tables(store_url) as tables:
        tables.execute("CREATE TABLE ledger (fence integer NOT NULL)")
        strike = Strike(1)
        faultpoints.arm("transaction.after_commit", strike)

        @app.task(name="pay", transaction=True)
        def pay() -> int:
            fence = current().fence
            current().connection.execute(f"INSERT INTO ledger VALUES ({int(fence)})")  # noqa: S608
            return fence

        run = pay.enqueue()
        with app.worker():
            assert run.result(timeout=20) == 1

        assert strike.struck == 1
        assert tables.rows("SELECT fence FROM ledger") == [(1,)]


def test_a_hold_whose_claim_is_in_doubt_has_not_begun_and_runs(app):
    bodies = []

    @app.task(name="charge", on_crash="hold")
    def charge() -> int:
        bodies.append(current().fence)
        return current().fence

    with app.worker():
        charge.enqueue().result(timeout=20)
        faultpoints.arm("claim.after_commit", Strike(1))
        run = charge.enqueue()

        assert run.result(timeout=20) in {1, 2}

    assert len(bodies) == 2
    assert run.record.state == "succeeded"

"""Dead letters: looked at, grouped, redriven once each, edited and discarded."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from duly import BadArguments, BadOption, Duly, PayloadError, RunNotFound
from duly.api.bulk_writes import BulkResult
from duly.api.runs import Filter
from duly.clock import new_id
from duly.errors import RunNotFinal


class Body:
    """Whether the task fails, and its number of calls for each order."""

    def __init__(self) -> None:
        self.broken = True
        self.calls: Counter[int] = Counter()


@pytest.fixture
def body() -> Body:
    """The behaviour of the task, which fails at first."""
    return Body()


@pytest.fixture
def pay(app: Duly, body: Body):
    """A task that fails while `body.broken` is set."""

    @app.task(name="pay", queue="money")
    async def pay(order: int, currency: str = "EUR") -> str:
        body.calls[order] += 1
        if body.broken:
            message = f"order {order} has no price"
            raise KeyError(message)
        return f"{order} {currency}"

    return pay


@pytest.fixture
def mail(app: Duly):
    """A task with another bug."""

    @app.task(name="mail")
    async def mail() -> None:
        raise ConnectionError

    return mail


def drain(app: Duly) -> None:
    """Run a worker until no run is left."""
    app.worker().drain(timeout=30)


def test_dead_letters_are_listed_newest_first(app, pay, mail):
    first, second = pay.enqueue(1), mail.enqueue()
    drain(app)
    pay.enqueue(2).cancel()

    assert [run.id for run in app.dead.list()] == [second.id, first.id]
    assert [run.id for run in app.dead.list(task=pay)] == [first.id]
    assert [run.id for run in app.dead.list(queue="money", state="failed")] == [first.id]
    assert app.dead.list(state="interrupted") == []


def test_a_dead_letter_is_failed_or_interrupted(untouched):
    with pytest.raises(BadOption, match="dead letters are failed or interrupted, not 'cancelled'"):
        untouched.dead.list(state="cancelled")


def test_five_hundred_failures_of_one_bug_are_one_group(app, pay, mail):
    app.enqueue_many(pay.call(n) for n in range(500))
    mail.enqueue()
    drain(app)

    groups = app.dead.groups()

    assert [(group.task, group.count) for group in groups] == [("pay", 500), ("mail", 1)]
    largest = groups[0]
    assert "has no price" in largest.error
    assert largest.first_at <= largest.last_at
    assert app.runs.get(largest.sample_id).record.fingerprint == largest.fingerprint
    assert len(app.dead.list(fingerprint=largest.fingerprint, limit=200)) == 200
    assert [group.task for group in app.dead.groups(task="mail")] == ["mail"]


FRAGILE = """
import os
from duly import Duly

app = Duly(os.environ["FRAGILE_URL"])

class NoPrice(Exception):
    pass

@app.task
def pay() -> None:
    raise NoPrice

if __name__ == "__main__":
    pay.enqueue()
    app.worker().drain(timeout=20)
    app.close()
"""


def test_one_bug_is_one_group_regardless_of_its_folder_and_import(store_url, tmp_path):
    """Folders differ between hosts and releases, and workers import the module of a program."""
    for folder, start in (("one", ["fragile.py"]), ("other", ["-m", "fragile"]), ("third", [])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "fragile.py").write_text(FRAGILE)
        imported = "from fragile import app, pay; pay.enqueue(); app.worker().drain(timeout=20)"
        subprocess.run(
            [sys.executable, *(start or ["-c", imported])],
            cwd=tmp_path / folder,
            env=os.environ | {"FRAGILE_URL": store_url},
            check=True,
            capture_output=True,
        )

    with closing(Duly(store_url)) as app:
        (group,) = app.dead.groups()

    assert (group.task, group.count) == ("fragile:pay", 3)
    assert group.error.startswith("fragile.NoPrice")


def test_different_bugs_of_one_task_are_different_groups(app):
    @app.task(name="mixed")
    async def mixed(kind: str) -> None:
        raise {"a": ValueError, "b": TypeError}[kind](kind)

    app.enqueue_many(mixed.call(kind) for kind in "aabbb")
    drain(app)

    assert [group.count for group in app.dead.groups()] == [3, 2]


def test_a_retry_keeps_id_history_and_key_and_is_audited(app, pay, body):
    run = pay.using(key="order-1").enqueue(1)
    drain(app)
    body.broken = False

    bulk = app.dead.retry(run.id, actor="ann", reason="price was added")

    assert (bulk.done, bulk.skipped) == (1, 0)
    assert (run.refresh().state, run.record.generation, run.record.attempt) == ("queued", 2, 1)
    drain(app)
    assert run.result(timeout=5) == "1 EUR"
    assert [(a.generation, a.attempt, a.outcome) for a in run.attempts()] == [
        (1, 1, "raised"),
        (2, 1, "returned"),
    ]
    assert pay.using(key="order-1").enqueue(1).id == run.id
    (act,) = app.store.list_audit_entries(run.id, 10)
    assert (act.actor, act.act, act.reason) == ("ann", "redrive", "price was added")


def test_a_retried_run_has_all_its_retries_again(app):
    tries: list[int] = []

    @app.task(name="flaky", retries=2)
    async def flaky() -> None:
        from duly import RetryAfter, current  # noqa: PLC0415

        tries.append(current().attempt)
        raise RetryAfter(0)

    run = flaky.enqueue()
    with app.worker():
        with pytest.raises(Exception, match="asked to be retried"):
            run.result(timeout=20)
        run.retry()
        with pytest.raises(Exception, match="asked to be retried"):
            run.result(timeout=20)

    assert tries == [1, 2, 3, 1, 2, 3]


def test_several_dead_letters_are_retried_by_their_ids(app, pay, body):
    runs = app.enqueue_many(pay.call(n) for n in range(3))
    drain(app)
    body.broken = False

    bulk = app.dead.retry([runs[0].id, runs[2].id])
    drain(app)

    assert bulk.done == 2
    assert [run.refresh().state for run in runs] == ["succeeded", "failed", "succeeded"]


def test_dead_letters_are_retried_by_a_filter(app, pay, mail, body):
    app.enqueue_many(pay.call(n) for n in range(7))
    mail.enqueue()
    drain(app)
    body.broken = False
    seen = []

    bulk = app.dead.retry(which=Filter(task=pay), progress=seen.append)
    drain(app)

    assert (bulk.done, bulk.skipped) == (7, 0)
    assert seen[-1] == bulk
    assert [group.task for group in app.dead.groups()] == ["mail"]


def test_an_edit_is_checked_against_the_signature(app, pay, body):
    run = pay.enqueue(1)
    drain(app)

    with pytest.raises(BadArguments, match="unexpected keyword argument 'curency'"):
        run.retry(arguments=((1,), {"curency": "USD"}))
    with pytest.raises(PayloadError, match="order"):
        app.runs.retry(run.id, arguments=((object(),), {}))
    assert run.refresh().state == "failed"
    body.broken = False
    run.retry(arguments=((2,), {"currency": "USD"}))
    drain(app)

    assert run.result(timeout=5) == "2 USD"
    assert json.loads(run.record.arguments)[1] == {"order": 2, "currency": "USD"}


def test_two_concurrent_bulk_retries_retry_each_run_once(app, pay, body, store_url):
    app.enqueue_many(pay.call(n) for n in range(500))
    drain(app)
    body.broken = False
    body.calls.clear()
    other = Duly(store_url)
    gate = threading.Barrier(2)

    def retry_all(app: Duly) -> int:
        gate.wait()
        return app.dead.retry(which=Filter()).done

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(retry_all, (app, other)))
    other.close()
    drain(app)

    assert sum(done) == 500
    assert set(body.calls.values()) == {1}
    assert len(body.calls) == 500
    assert {run.record.generation for run in app.runs.list(limit=200)} == {2}


def test_a_run_that_was_already_retried_is_skipped(app, pay):
    run = pay.enqueue(1)
    drain(app)
    app.dead.retry(run.id)

    assert app.dead.retry(run.id) == BulkResult(0, 1)


def test_a_bulk_retry_respects_its_rate(app, pay):
    app.enqueue_many(pay.call(n) for n in range(60))
    drain(app)
    at: list[tuple[float, int]] = []

    begun = time.monotonic()
    bulk = app.dead.retry(
        which=Filter(), rate=100, progress=lambda b: at.append((time.monotonic() - begun, b.done))
    )
    took = time.monotonic() - begun

    assert bulk.done == 60
    assert took >= 0.6
    # The number of retried runs never exceeds the rate by more than one batch of a tenth second.
    assert all(done <= 100 * elapsed + 10 for elapsed, done in at)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 1e-320, "1"])
def test_an_invalid_rate_is_refused(untouched, rate):
    with pytest.raises(BadOption, match="rate must be a number per second"):
        untouched.dead.retry(which=Filter(), rate=rate)


def test_dead_letters_are_named_by_id_or_by_filter(untouched):
    for arguments in ({}, {"run_ids": new_id(), "which": Filter()}):
        with pytest.raises(BadOption, match="either by id or by filter"):
            untouched.dead.retry(**arguments)


def test_an_unknown_dead_letter_is_not_found(app):
    with pytest.raises(RunNotFound):
        app.dead.retry(new_id())
    with pytest.raises(RunNotFound):
        app.dead.discard([new_id()], reason="x")


def test_a_discarded_dead_letter_is_cancelled_and_keeps_its_error(app, pay):
    run = pay.enqueue(1)
    drain(app)

    bulk = app.dead.discard(run.id, reason="a test order", actor="bob")

    assert (bulk.done, bulk.skipped) == (1, 0)
    assert (run.refresh().state, run.cause) == ("cancelled", "discarded")
    assert "has no price" in run.record.error
    assert app.dead.list() == []
    (act,) = app.store.list_audit_entries(run.id, 10)
    assert (act.actor, act.act, act.reason) == ("bob", "discard", "a test order")
    assert app.dead.discard(run.id, reason="again") == BulkResult(0, 1)


def test_discarding_by_filter_leaves_other_dead_letters_unchanged(app, pay, mail):
    app.enqueue_many(pay.call(n) for n in range(3))
    kept = mail.enqueue()
    drain(app)

    assert app.dead.discard(which=Filter(task="pay"), reason="old").done == 3

    assert [run.id for run in app.dead.list()] == [kept.id]


def test_discarding_needs_a_reason(untouched):
    with pytest.raises(BadOption, match="needs a reason"):
        untouched.dead.discard(new_id(), reason="")


def test_a_live_run_is_neither_retried_nor_discarded(app, pay):
    run = pay.enqueue(1)

    assert app.dead.retry(run.id) == BulkResult(0, 1)
    assert app.dead.discard(run.id, reason="x") == BulkResult(0, 1)
    assert run.refresh().state == "queued"


def test_a_run_is_not_retried_while_another_run_of_its_key_is_live(app, body):
    @app.task(name="rebuild", unique="active")
    async def rebuild(name: str) -> None:
        if body.broken:
            raise ValueError(name)

    first = rebuild.using(key="site").enqueue("site")
    drain(app)
    second = rebuild.using(key="site").enqueue("site")
    words = f"run {first.id} cannot be retried .* has its key: run {second.id} is queued"

    with pytest.raises(RunNotFinal, match=words) as refused:
        first.retry()
    bulk = app.dead.retry([first.id])

    assert refused.value.run_id == second.id
    assert bulk == (0, 1, (str(refused.value),))
    assert app.runs.get(first.id).state == "failed"
    body.broken = False
    drain(app)
    assert first.retry().state == "queued"

"""Enqueueing: the record of a run has the options of the call, and each key has one run."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from unittest.mock import Mock

import pytest

from duly import BadOption, Duly, KeyConflict
from duly.clock import MICROSECONDS
from duly.errors import StoreUnavailable

SECOND = MICROSECONDS


@pytest.fixture
def send(app: Duly):
    """A task with options of its own."""

    @app.task(name="shop:send", queue="mail", priority=2, expires=600)
    def send(to: str = "ada", amount: int = 1) -> str:
        return f"{amount} to {to}"

    return send


def test_a_call_uses_the_options_of_its_task(send):
    record = send.enqueue("bob", amount=3).record

    assert (record.task, record.queue, record.priority) == ("shop:send", "mail", 2)
    assert (record.state, record.attempt, record.generation) == ("queued", 1, 1)
    assert record.due_at == record.created_at
    assert record.expires_at == record.created_at + 600 * SECOND
    assert (record.key, record.tags, record.claim_number) == (None, None, 0)
    assert json.loads(record.arguments) == [[], {"to": "bob", "amount": 3}]


def test_the_options_of_a_call_are_stored_in_its_record(send):
    run = send.using(
        key="order-42",
        delay=30,
        queue="later",
        priority=-5,
        tags={"tenant": "x", "kind": "ü=,;"},
        expires=timedelta(hours=1),
    ).enqueue()

    record = run.record
    assert (record.key, record.queue, record.priority) == ("order-42", "later", -5)
    assert record.due_at - record.created_at == 30 * SECOND
    assert record.expires_at - record.created_at == 3600 * SECOND
    assert json.loads(record.tags) == {"tenant": "x", "kind": "ü=,;"}


@pytest.mark.parametrize("delay", [0, 0.25, 90, timedelta(milliseconds=1500), timedelta(days=3650)])
def test_a_delay_is_exact_to_the_microsecond(send, delay):
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay

    record = send.using(delay=delay).enqueue().record

    assert record.due_at - record.created_at == int(seconds * SECOND)


def test_an_instant_is_the_same_in_every_time_zone(send):
    at = datetime(2031, 7, 1, 12, 30, 15, 123456, tzinfo=UTC)

    elsewhere = at.astimezone(timezone(timedelta(hours=-7)))
    runs = [send.using(at=moment).enqueue() for moment in (at, elsewhere)]

    expected = round(at.timestamp()) * SECOND + 123456
    assert [run.record.due_at for run in runs] == [expected, expected]


def test_an_instant_in_the_past_is_due_immediately(app, send):
    run = send.using(at=datetime(1999, 1, 1, tzinfo=UTC)).enqueue()

    app.worker().drain(timeout=20)

    assert run.refresh().state == "succeeded"


def test_the_options_of_a_call_do_not_change_the_task(send):
    send.using(queue="other", priority=9).enqueue()

    record = send.enqueue().record

    assert (record.queue, record.priority) == ("mail", 2)


def test_bound_options_apply_to_several_calls(send):
    urgent = send.using(priority=9)

    runs = [urgent.enqueue("a"), urgent.enqueue("b")]

    assert [run.record.priority for run in runs] == [9, 9]
    assert runs[0].id != runs[1].id


def test_ids_grow_in_the_order_of_the_calls(app, send):
    ids = [send.enqueue().id for _ in range(5)]
    ids += [run.id for run in app.enqueue_many(send.call() for _ in range(5))]

    assert ids == sorted(ids)
    assert len(set(ids)) == 10


def test_a_run_enqueued_from_an_event_loop_is_durable_when_the_call_returns(app, send, store_url):
    async def enqueue():
        runs = await asyncio.gather(*(send.using(tags={"n": str(n)}).aenqueue() for n in range(50)))
        return [run.id for run in [await send.aenqueue("first"), *runs]]

    ids = asyncio.run(enqueue())

    seen_by_others = Duly(store_url)
    assert sorted(ids) == sorted(run.id for run in seen_by_others.runs.list(limit=100))
    seen_by_others.close()


def test_a_key_conflict_is_raised_to_a_caller_on_an_event_loop(app, send):
    async def enqueue():
        await send.using(key="k").aenqueue("ada")
        await send.using(key="k").aenqueue("bob")

    with pytest.raises(KeyConflict):
        asyncio.run(enqueue())


def test_a_caller_that_is_cancelled_while_it_waits_does_not_affect_other_callers(app, send):
    async def enqueue():
        asked = [asyncio.create_task(send.aenqueue()) for _ in range(20)]
        await asyncio.sleep(0)
        asked[3].cancel()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(enqueue())

    refused = [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)]
    assert refused == [3]
    stored = {run.id for run in app.runs.list(limit=100)}
    assert stored >= {answer.id for n, answer in enumerate(answers) if n != 3}


def test_enqueue_many_accepts_many_calls_in_their_order(app, send):
    runs = app.enqueue_many(send.call(f"n{n}") for n in range(2500))

    first, last = runs[0].record, runs[-1].record
    assert len(runs) == 2500
    assert (json.loads(first.arguments)[1]["to"], json.loads(last.arguments)[1]["to"]) == (
        "n0",
        "n2499",
    )
    assert sum(queue.ready for queue in app.queues.list() if queue.name == "mail") > 0


def test_enqueue_many_without_calls_returns_no_runs(app):
    assert app.enqueue_many([]) == []


def test_enqueue_many_accepts_calls_of_several_tasks_with_different_options(app, send):
    @app.task(name="other")
    def other() -> None: ...

    runs = app.enqueue_many([send.call(), other.call(), send.using(queue="x").call()])

    assert [run.record.queue for run in runs] == ["mail", "default", "x"]


class TestKeys:
    """At most one run per task and key."""

    def test_the_same_call_twice_is_one_run(self, app, send):
        first = send.using(key="order-1").enqueue("ada", amount=2)
        again = send.using(key="order-1", priority=9).enqueue(amount=2, to="ada")

        assert (first.new, again.new) == (True, False)
        assert again.id == first.id
        assert len(app.runs.list()) == 1

    def test_a_call_with_explicit_defaults_is_the_same_call(self, send):
        first = send.using(key="order-1").enqueue()

        assert send.using(key="order-1").enqueue("ada", 1).id == first.id

    def test_a_call_with_other_arguments_is_a_conflict_that_names_the_run(self, app, send):
        first = send.using(key="order-1").enqueue("ada")

        with pytest.raises(KeyConflict, match="order-1") as caught:
            send.using(key="order-1").enqueue("bob")

        assert (caught.value.key, caught.value.run_id) == ("order-1", first.id)
        assert len(app.runs.list()) == 1

    def test_keys_are_compared_exactly_and_per_task(self, app, send):
        @app.task(name="shop:bill")
        def bill(to: str = "ada") -> None: ...

        keys = ["a", "A", " a", "a ", "ä", "a\u0308", "%", "_", "k" * 255]
        runs = [send.using(key=key).enqueue() for key in keys]
        runs.append(bill.using(key="a").enqueue())

        assert all(run.new for run in runs)
        assert len({run.id for run in runs}) == len(keys) + 1

    def test_a_key_outlives_its_run(self, app, send):
        first = send.using(key="order-1").enqueue()
        app.worker().drain(timeout=20)

        again = send.using(key="order-1").enqueue()

        assert (again.id, again.new) == (first.id, False)
        assert again.result(timeout=5) == "1 to ada"

    def test_a_key_with_unique_active_is_free_after_its_run_ends(self, app, send):
        active = send.using(key="sync", unique="active")
        first = active.enqueue()
        assert active.enqueue().id == first.id
        app.worker().drain(timeout=20)

        second = active.enqueue()

        assert second.new
        assert second.id != first.id

    def test_a_key_with_a_ttl_of_zero_is_free_after_its_run_ends(self, app):
        @app.task(name="brief", key_ttl=0)
        def brief() -> None: ...

        first = brief.using(key="k").enqueue()
        app.worker().drain(timeout=20)

        assert brief.using(key="k").enqueue().id != first.id

    def test_a_key_that_was_reset_can_create_a_new_run(self, app, send):
        first = send.using(key="order-1").enqueue("ada")

        assert app.reset_key(send, "order-1", actor="ann")
        assert not app.reset_key("shop:send", "order-1")

        second = send.using(key="order-1").enqueue("bob")
        assert second.new
        assert second.id != first.id
        assert first.refresh().state == "queued"
        (act,) = app.store.list_audit_entries(None, 10)
        assert (act.actor, act.act) == ("ann", "reset key")

    def test_an_invalid_key_cannot_be_reset(self, app, send):
        for key in ("", "a\0", "\ud800", "k" * 256):
            with pytest.raises(BadOption, match="key"):
                app.reset_key(send, key)

    def test_one_conflict_among_a_hundred_callers_leaves_99_durable(self, send, store_url):
        send.using(key="taken").enqueue("somebody")
        gate = threading.Barrier(100)

        def enqueue(number):
            call = send.using(key="taken" if number == 50 else f"k{number}")
            gate.wait()
            return call.enqueue(f"n{number}")

        with ThreadPoolExecutor(100) as pool:
            futures = [pool.submit(enqueue, number) for number in range(100)]
            errors = [future.exception() for future in futures]

        assert isinstance(errors.pop(50), KeyConflict)
        assert errors == [None] * 99
        expected = {future.result().id for n, future in enumerate(futures) if n != 50}
        seen_by_others = Duly(store_url)
        stored = {run.id for run in seen_by_others.runs.list(limit=200)}
        seen_by_others.close()
        assert expected <= stored
        assert len(stored) == 100

    def test_one_conflict_among_many_calls_of_a_batch_leaves_the_others_durable(self, app, send):
        send.using(key="taken").enqueue("somebody")
        calls = [send.using(key="taken" if n == 5 else f"k{n}").call() for n in range(10)]

        with pytest.raises(KeyConflict):
            app.enqueue_many(calls)

        assert len(app.runs.list()) == 10

    def test_fifty_callers_of_one_key_make_one_run(self, app, send):
        gate = threading.Barrier(50)

        def enqueue(_):
            gate.wait()
            return send.using(key="once").enqueue()

        with ThreadPoolExecutor(50) as pool:
            runs = list(pool.map(enqueue, range(50)))

        assert len({run.id for run in runs}) == 1
        assert [run.new for run in runs].count(True) == 1
        assert len(app.runs.list()) == 1


# -- enqueue_many --


@pytest.fixture
def small_batches(monkeypatch):
    """Put five calls into each transaction."""
    monkeypatch.setattr("duly.task.ENQUEUE_BATCH", 5)


def test_many_calls_keep_their_order_across_batches(app, send, small_batches):
    runs = app.enqueue_many(send.call(f"n{n}") for n in range(23))

    assert [json.loads(run.record.arguments)[1]["to"] for run in runs] == [
        f"n{n}" for n in range(23)
    ]


def test_a_transaction_of_many_calls_is_bounded_by_the_size_of_their_arguments(
    app, send, monkeypatch
):
    monkeypatch.setattr("duly.task.TRANSACTION_BYTES", 4_000)
    written = []
    apply = app.store.apply
    monkeypatch.setattr(app.store, "apply", lambda ops: written.append(len(ops)) or apply(ops))

    runs = app.enqueue_many(send.call("x" * 350) for _ in range(7))

    assert written == [3, 3, 1]
    assert len({run.id for run in runs}) == 7


def test_a_bad_call_after_good_batches_leaves_only_those_batches_durable(app, send, small_batches):
    def calls():
        for n in range(12):
            yield send.call(f"n{n}")
        yield send.call("bob", amount=object())

    with pytest.raises(TypeError, match="amount"):
        app.enqueue_many(calls())

    assert len(app.runs.list(limit=100)) == 10


def test_a_key_conflict_stops_the_batches_after_it(app, send, small_batches):
    send.using(key="k").enqueue("ada")

    def calls():
        for n in range(30):
            yield send.using(key="k" if n == 7 else None).call(f"n{n}")

    with pytest.raises(KeyConflict):
        app.enqueue_many(calls())

    # The other nine calls of the conflicting batch were written.
    assert len(app.runs.list(limit=100)) == 1 + 9


def test_a_failed_write_is_raised_before_the_error_of_a_later_bad_call(
    app, send, small_batches, monkeypatch
):
    def calls():
        for n in range(5):
            yield send.call(f"n{n}")
        yield send.call("bob", amount=object())

    app.runs.list()
    failed = StoreUnavailable("gone")
    monkeypatch.setattr(app.store, "apply", Mock(side_effect=failed))
    monkeypatch.setattr(app.store, "submit", lambda _ops, done: done(failed))

    with pytest.raises(StoreUnavailable):
        app.enqueue_many(calls())

"""Dramatiq actors, run by real workers over a real Redis, run once per key."""

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.common import dq_name
from dramatiq.errors import ConnectionClosed
from dramatiq.middleware import MiddlewareError
from dramatiq.results import ResultFailure, ResultMissing

from duly.integrations.dramatiq import IdempotentMiddleware
from tests.servers.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.stores("sqlite")]
# The conformance suite and test_kills.py cover the behaviour that depends on the ledger.

WAIT = 40


def wait_for(counter, what: str, count: int = 1) -> None:
    """Wait until an effect was reported this many times."""
    wait_until(
        lambda: counter.count(what).total() >= count, seconds=WAIT, what=f"{count} times {what}"
    )


def test_equal_messages_run_once_and_all_return_the_result(shop, counter):
    shop.worker()
    charge, greet = shop.actors.charge, shop.actors.greet
    sent = [charge.send(1), charge.send(order_id=1), charge.send(1, currency="EUR")]
    others = [charge.send(2), charge.send(1, "USD")]
    greetings = [greet.send("ann"), greet.send("ann")]

    assert [shop.result(message) for message in sent] == [{"order": 1, "currency": "EUR"}] * 3
    assert [shop.result(message)["order"] for message in others] == [2, 1]
    assert [shop.result(message) for message in greetings] == ["hello ann"] * 2
    assert counter.count("charged") == {"1": 2, "2": 1}
    assert counter.count("greeted") == {"ann": 1}


def test_a_duplicate_of_a_running_message_is_postponed_and_gets_its_result(shop, counter):
    worker = shop.worker()
    first = shop.actors.linger.send(1)
    wait_for(counter, "began")
    second = shop.actors.linger.send(1)

    wait_until(
        lambda: worker.log.read_text().count("was skipped") >= 2,
        seconds=WAIT,
        what="the message is postponed twice without a retry",
    )
    with pytest.raises(ResultMissing):
        second.get_result(backend=shop.actors.results)
    shop.open_gate()

    assert shop.result(first) == shop.result(second)
    assert counter.count("began") == {"1": 1}


def test_a_failing_message_is_retried_by_dramatiq(shop, counter):
    shop.worker()

    assert shop.result(shop.actors.flaky.send(1, 2)) == 1
    with pytest.raises(ResultFailure, match="away"):
        shop.result(shop.actors.flaky.send(2, 9))
    assert counter.count("tried") == {"1": 3, "2": 4}


def test_an_explicit_key_that_is_reused_for_another_call_is_refused(shop):
    shop.worker()
    assert shop.result(shop.actors.flaky.send(1, 0)) == 1
    other = shop.actors.flaky.send_with_options(args=(1, 2), max_retries=0)

    with pytest.raises(ResultFailure, match="other arguments"):
        shop.result(other)


def test_a_message_that_kills_its_process_is_given_up(shop, counter):
    message = shop.actors.deadly.send(1)
    for count in (1, 2):
        shop.worker()
        wait_for(counter, "tried", count)
    shop.worker()

    with pytest.raises(ResultFailure, match="2 processes died"):
        shop.result(message)
    assert counter.count("tried") == {"1": 2}


def test_a_frozen_holder_cannot_finish(shop, counter, store_url):
    first = shop.worker()
    frozen = shop.actors.linger.send(1)
    wait_for(counter, "began")
    ((_, holder),) = counter.effects("began")
    first.freeze(store_url)
    shop.worker()
    second = shop.actors.linger.send(1)
    wait_for(counter, "began", 2)
    shop.open_gate()
    winner = shop.result(second)
    first.thaw()

    assert shop.result(frozen) == winner != holder
    wait_for(counter, "ended", 2)
    assert shop.result(frozen) == winner, "the result of the late actor was refused"


def test_only_a_message_is_guarded_not_a_plain_call(shop, counter):
    shop.worker()
    expected = {"order": 1, "currency": "EUR"}

    assert [shop.actors.charge(1) for _ in range(2)] == [expected] * 2
    assert [shop.result(shop.actors.outer.send(1)) for _ in range(2)] == [expected] * 2
    assert counter.count("charged") == {"1": 4}


def test_a_message_runs_again_after_its_key_is_reset(shop, counter):
    shop.worker()
    for _ in range(2):
        shop.result(shop.actors.charge.send(1))
        assert shop.guard.reset(shop.actors.charge.fn.key_for(1))

    assert counter.count("charged") == {"1": 2}


@pytest.fixture
def stub(shop):
    """Yield a broker in memory, with the middleware, and a worker in this process."""
    broker = StubBroker()
    broker.add_middleware(IdempotentMiddleware(shop.guard))
    worker = dramatiq.Worker(broker, worker_timeout=100)
    worker.start()
    yield broker
    worker.stop()
    broker.close()


def test_a_pipeline_waits_for_a_postponed_message_and_continues_with_its_result(shop, stub):
    seen: list[int] = []
    first = dramatiq.actor(
        lambda number: number, actor_name="first", broker=stub, idempotent=True, idempotent_wait=0
    )
    last = dramatiq.actor(seen.append, actor_name="last", broker=stub)
    with shop.guard.once(first.fn.key_for(1)) as claim:
        dramatiq.pipeline([first.message(1), last.message()], broker=stub).run()
        delayed = stub.queues[dq_name(first.queue_name)]
        wait_until(lambda: delayed.unfinished_tasks, seconds=WAIT, what="the message is postponed")
        assert seen == []
        claim.done(7)

    wait_until(lambda: seen, seconds=WAIT, what="the pipeline has continued")
    assert seen == [7]


def test_a_message_that_cannot_be_postponed_is_not_acknowledged(shop, stub, monkeypatch):
    actor = dramatiq.actor(
        lambda: None, actor_name="report", broker=stub, idempotent=True, max_retries=0
    )
    with shop.guard.once(actor.fn.key_for()):
        actor.send()
        monkeypatch.setattr(stub, "enqueue", _refuse)
        stub.join(actor.queue_name, fail_fast=False)

    assert [message.actor_name for message in stub.dead_letters] == ["report"]


def _refuse(*_: object, **__: object) -> None:
    raise ConnectionClosed("away")


def test_an_actor_that_would_not_be_guarded_is_refused(stub):
    def numbers():
        yield 1

    with pytest.raises(MiddlewareError, match="is a generator"):
        dramatiq.actor(numbers, broker=stub, idempotent=True)
    with pytest.raises(MiddlewareError, match="ttl"):
        dramatiq.actor(print, actor_name="a", broker=stub, idempotent=True, idempotent_ttl=-1)
    with pytest.raises(MiddlewareError, match="set idempotent=True"):
        dramatiq.actor(print, actor_name="b", broker=stub, idempotent_key=str)

"""Time limits of other engines that are raised at each of duly's own instructions in turn."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import celery
import dramatiq
import pytest
from celery.exceptions import SoftTimeLimitExceeded
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import TimeLimitExceeded
from rq.timeouts import JobTimeoutException

from duly.guard import Guard
from duly.integrations.celery import IdempotentTask
from duly.integrations.dramatiq import IdempotentMiddleware
from duly.integrations.rq import idempotent
from tests.strikes import Strike

GUARD = tuple(
    f"duly/guard/{name}.py"
    for name in ("entry", "claim", "threads", "guard", "idempotency", "dead_letters")
)
CELERY = (
    *GUARD,
    *(f"integrations/celery/{name}.py" for name in ("task", "dead_letters", "coroutines")),
)
RQ = (*GUARD, "integrations/rq/idempotency.py")
LOOP = ("duly/async_threads.py",)
DRAMATIQ = (*GUARD, "integrations/dramatiq.py")
BEFORE_IT_BEGINS = 4
"""Celery's limit may strike this many times before a dead letter can be written."""


@pytest.fixture
def guard(tmp_path) -> Iterator[Guard]:
    """Yield a guard on SQLite. Other stores differ only below the tested code."""
    with closing(Guard(f"sqlite:///{tmp_path / 'guard.db'}", lease=60)) as guard:
        guard.look("anything")
        yield guard


@pytest.fixture
def pay(guard):
    """Return a Celery task that notes its calls and fails for negative numbers."""
    effects: list[int] = []

    def pay(number: int) -> int:
        if number < 0:
            raise ValueError(number)
        effects.append(number)
        return number

    return celery_task(guard, pay, effects)


@pytest.fixture
def pay_on_a_loop(guard):
    """Return the same task as a coroutine."""
    effects: list[int] = []

    async def pay_on_a_loop(number: int) -> int:
        effects.append(number)
        return number

    return celery_task(guard, pay_on_a_loop, effects)


def celery_task(guard, function, effects):
    """Make a task from a function that notes its calls."""
    app = celery.Celery("strikes", broker="memory://", backend="cache+memory://")
    task = app.task(function, base=IdempotentTask, guard=guard, name="pay", shared=False)
    task.effects = effects
    return task


def dead_letters_of(guard: Guard, number: int) -> int:
    """Count the dead letters of a call."""
    said = f'"number":{number}}}'
    return sum(said in letter.arguments for letter in guard.letters.list(limit=200))


def struck(number: int, *files: str, error: type[BaseException], act) -> bool:
    """Strike once. Return whether there was such an instruction."""
    strike = Strike(number, *files, error=error)
    strike.call(act)
    return strike.has_struck


# A coroutine that was struck before it began is never awaited.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("kind", ["pay", "pay_on_a_loop"])
def test_a_celery_task_succeeds_or_becomes_one_dead_letter(guard, kind, request):
    pay = request.getfixturevalue(kind)
    states: list[str] = []
    unkept = 0
    for number in itertools.count():
        found = []
        has_struck = struck(
            number,
            *CELERY,
            error=SoftTimeLimitExceeded,
            act=lambda number=number, found=found: found.append(pay.apply((number,))),
        )
        states.append(found[0].state)
        if found[0].successful():
            assert pay.effects.count(number) == 1
        else:
            assert pay.effects.count(number) == 0
            unkept += dead_letters_of(guard, number) == 0
            assert dead_letters_of(guard, number) <= 1
        assert pay.apply((number,)).get() == number
        assert pay.effects.count(number) == 1
        if not has_struck:
            break

    assert {"SUCCESS", "FAILURE"} <= set(states)
    assert unkept <= BEFORE_IT_BEGINS


def test_a_celery_task_that_fails_becomes_one_dead_letter(guard, pay):
    unkept = 0
    for number in itertools.count():
        has_struck = struck(
            number,
            *CELERY,
            error=SoftTimeLimitExceeded,
            act=lambda number=number: pay.apply((-1 - number,)),
        )
        kept = dead_letters_of(guard, -1 - number)
        unkept += kept == 0
        assert kept <= 1
        with guard.once(pay.key_for((-1 - number,), {}), wait=5) as claim:
            assert claim.first
            claim.fail()
        if not has_struck:
            break

    assert unkept <= BEFORE_IT_BEGINS


def test_a_function_run_by_rq_has_its_effect_once(guard):
    effects: list[str] = []
    body = idempotent(guard, key=str, name="body", wait=5)(effects.append)
    for number in itertools.count():
        key = f"key {number}"
        has_struck = struck(number, *RQ, error=JobTimeoutException, act=lambda key=key: body(key))
        body(key)
        assert effects.count(key) == 1
        if not has_struck:
            break
    module = sys.modules["duly.integrations.rq.idempotency"]
    assert not module._is_body_running.get(), (
        "a later job would be taken for a call inside this one"
    )


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_coroutine_run_by_rq_has_its_effect_once(guard, monkeypatch):
    effects: list[str] = []
    job = SimpleNamespace(number_of_retries=0)
    module = sys.modules["duly.integrations.rq.idempotency"]
    monkeypatch.setattr(module, "_job_of", lambda _function: job)

    @idempotent(guard, key=str, name="body", wait=5)
    async def body(key: str) -> str:
        effects.append(key)
        return key

    for number in itertools.count():
        key = f"key {number}"
        has_struck = struck(
            number, *RQ, *LOOP, error=JobTimeoutException, act=lambda key=key: body(key)
        )
        assert body(key) == key
        assert effects.count(key) == 1
        if not has_struck:
            break
    assert number > 40


def test_an_actor_of_dramatiq_has_its_effect_once(guard):
    effects: list[str] = []
    middleware = IdempotentMiddleware(guard)
    broker = StubBroker(middleware=[middleware])

    @dramatiq.actor(broker=broker, idempotent=True, idempotent_wait=5)
    def pay(key: str) -> str:
        effects.append(key)
        return key

    def process(key: str) -> str:
        middleware.before_process_message(broker, dramatiq.broker.MessageProxy(pay.message(key)))
        return pay.fn(key)

    results = set()
    for number in itertools.count():
        key = f"key {number}"
        has_struck = struck(
            number,
            *DRAMATIQ,
            error=TimeLimitExceeded,
            act=lambda key=key: results.add(process(key) == key),
        )
        assert process(key) == key
        assert effects.count(key) == 1
        if not has_struck:
            break
    assert results == {True}

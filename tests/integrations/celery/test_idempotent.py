"""Celery tasks, carried by real workers over a real Redis, run once per payload."""

import asyncio
import re
from contextlib import closing

import celery
import pytest
from celery.exceptions import Ignore, TimeLimitExceeded
from celery.states import FAILURE, RETRY, SUCCESS

from duly.errors import BadOption, DulyError, StoreUnavailable
from duly.guard import Guard
from duly.guard.dead_letters import DeadLetterDraft, GuardDeadLetters, LetterNotSent
from duly.integrations.celery import AlreadyQueued, Celery, dead_letters
from duly.integrations.celery.dead_letters import write_dead_letter, write_timeout_dead_letter
from duly.store.reads import DeadLetterFilter
from tests.servers.freeze import freeze, thaw
from tests.servers.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.stores("sqlite")]
# The conformance suite and test_kills.py cover the behaviour that depends on the ledger.

WAIT = 30


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_equal_calls_run_once_and_all_return_the_result(shop, pool):
    shop.worker("--pool", pool, "--concurrency", "2")
    charge = shop.tasks.charge

    sent = [charge.delay(1), charge.delay(order_id=1), charge.delay(1, currency="EUR")]
    others = [charge.delay(2), charge.apply_async((1, "USD"), countdown=0.1)]
    greetings = [shop.tasks.greet.delay("ann"), shop.tasks.greet.delay(name="ann")]
    late = shop.tasks.greet.delay("bob", failures=1)

    expected = {"order": 1, "currency": "EUR"}
    assert [result.get(WAIT) for result in sent] == [expected] * 3
    assert [result.get(WAIT)["order"] for result in others] == [2, 1]
    assert sorted(subject for subject, _ in shop.notes("charged")) == ["1", "1", "2"]
    first, second = (result.get(WAIT) for result in greetings)
    assert first == second
    assert late.get(WAIT).startswith("hello bob")
    assert sorted(subject for subject, _ in shop.notes("greeted")) == ["ann", "bob"]


def test_a_duplicate_of_a_running_call_is_postponed_and_gets_its_result(shop):
    shop.worker()
    first = shop.tasks.linger.delay(1)
    shop.wait_for("began")
    second = shop.tasks.linger.delay(1)

    wait_until(lambda: second.state == RETRY, seconds=WAIT, what="the message is postponed")
    assert "is held by" in str(second.info)
    put_off = rf"linger\[{second.id}\] retry: Retry in ([\d.]+)s"
    # Celery writes to its result backend before it writes to its log.
    wait_until(lambda: re.search(put_off, shop.logs()), seconds=WAIT, what="the log says so")
    seconds = [float(found) for found in re.findall(put_off, shop.logs())]
    assert 0 < min(seconds) <= max(seconds) <= shop.tasks.LEASE, (
        "postponed for the rest of the lease"
    )
    shop.open_gate()

    assert (first.get(WAIT), second.get(WAIT)) == (1, 1)
    assert shop.count("began") == 1


def test_retries_keep_the_same_key(shop):
    shop.worker()

    assert shop.tasks.flaky.delay(1, 3).get(WAIT) == 1

    assert shop.count("tried") == 4
    assert shop.guard.letters.list() == []


def test_a_task_that_asks_for_a_retry_and_returns_is_retried(shop):
    shop.worker()

    shop.tasks.retries_and_returns.delay(1)

    key = shop.tasks.retries_and_returns.key_for((1,), {})
    shop.wait_for("tried", 2)
    wait_until(lambda: shop.guard.look(key).state == "done", seconds=WAIT, what="it is done")
    assert shop.guard.look(key).result == '"at last"'


def test_exhausted_retries_end_as_a_dead_letter_that_can_be_replayed(shop):
    shop.worker()
    result = shop.tasks.flaky.delay(1, failures=9)

    with pytest.raises(ConnectionError):
        result.get(WAIT)

    (letter,) = shop.guard.letters.list()
    assert (letter.engine, letter.cause, letter.attempts) == ("celery", "exhausted", 4)
    assert letter.task == "tests.integrations.celery.shop.flaky"
    assert letter.arguments == '[[],{"order_id":1,"failures":9}]'
    assert letter.error == "ConnectionError: away"
    assert "Traceback" in letter.traceback
    assert letter.queue == "celery"


def test_a_permanent_error_ends_as_a_dead_letter_whose_replay_runs(shop):
    shop.worker()
    for number in (1, 2):
        with pytest.raises(ValueError, match="no such order"):
            shop.tasks.broken.delay(number).get(WAIT)
    second, first = shop.guard.letters.list(cause="permanent")
    shop.mend()

    assert shop.guard.letters.replay(first.id) == (1, 0, ())
    assert shop.guard.letters.replay(first.id) == (0, 1, ()), "the dead letter was already replayed"
    assert shop.guard.letters.discard(second.id, actor="ann") == (1, 0, ())

    shop.wait_for("tried", 3)
    wait_until(lambda: shop.guard.look(first.key).state == "done", seconds=WAIT, what="it is done")
    assert [subject for subject, _ in shop.notes("tried")] == ["1", "2", "1"]
    assert shop.guard.letters.list() == []
    assert shop.guard.letters.get(second.id).actor == "ann"


def test_a_task_that_sends_itself_to_the_dead_letters_has_failed_and_can_be_replayed(shop):
    shop.worker()
    result = shop.tasks.gives_up.delay({"order": 7})

    with pytest.raises(Exception, match="sent itself to the dead letters"):
        result.get(WAIT)

    assert result.state == FAILURE
    (letter,) = shop.guard.letters.list(cause="sent")
    assert letter.error == "KeyError: 'sku'"
    assert shop.guard.look(letter.key).state == "failed"
    shop.mend()
    shop.guard.letters.replay([letter.id])
    wait_until(lambda: shop.guard.look(letter.key).state == "done", seconds=WAIT, what="it is done")


def test_a_task_that_kills_its_process_ends_as_a_dead_letter_and_the_pool_survives(shop):
    worker = shop.worker()
    result = shop.tasks.deadly.delay(1)

    with pytest.raises(Exception, match="processes died"):
        result.get(WAIT)

    assert shop.count("tried") == 2
    (letter,) = shop.guard.letters.list(cause="crashed")
    assert letter.attempts == 2, "there was no third attempt"
    assert worker.is_alive()
    # A replay really runs, with all of its retries available again.
    shop.guard.letters.replay(letter.id)
    shop.wait_for("tried", 4)
    wait_until(
        lambda: len(shop.guard.letters.list(cause="crashed")) == 1, seconds=WAIT, what="it is back"
    )
    (again,) = shop.guard.letters.list(cause="crashed")
    assert (again.attempts, shop.count("tried")) == (4, 4)
    assert shop.tasks.charge.delay(1).get(WAIT)["order"] == 1


def test_tasks_that_exceed_a_time_limit_become_dead_letters(shop):
    shop.worker()
    for task in (shop.tasks.endless, shop.tasks.slow, shop.tasks.slow_on_a_loop):
        with pytest.raises(Exception, match="TimeLimit"):
            task.delay(1).get(WAIT)

    letters = shop.guard.letters.list()
    causes = {letter.task.rpartition(".")[2]: letter.cause for letter in letters}
    assert causes == {"endless": "timeout", "slow": "permanent", "slow_on_a_loop": "permanent"}
    assert [letter.queue for letter in letters] == ["celery"] * 3
    assert shop.count("warned") == 2


@pytest.fixture
def timed_out(shop):
    """Return a function that notes a task's hard time limit as a worker's main process does."""

    def note(task: celery.Task) -> None:
        write_timeout_dead_letter(task, (1,), {}, TimeLimitExceeded(1))

    return note


def test_the_dead_letter_of_a_time_limit_is_written_once_the_ledger_is_back(
    shop, timed_out, monkeypatch
):
    put, failures = GuardDeadLetters.put, [StoreUnavailable("away"), StoreUnavailable("away")]

    def put_later(self, draft, letter_id):
        put(self, draft, letter_id)  # The answer of the ledger is lost, too.
        if failures:
            raise failures.pop()

    monkeypatch.setattr(GuardDeadLetters, "put", put_later)
    timed_out(shop.tasks.endless)

    (letter,) = shop.guard.letters.list()
    assert (letter.cause, failures) == ("timeout", [])


def test_the_dead_letter_of_a_time_limit_is_logged_whole_if_it_cannot_be_written(
    shop, timed_out, monkeypatch, caplog
):
    monkeypatch.setattr(dead_letters, "DEAD_LETTER_WRITE_SECONDS", 0.0)
    monkeypatch.setattr(shop.tasks.endless, "guard", Guard("redis://127.0.0.1:1/0"))

    timed_out(shop.tasks.endless)

    (line,) = caplog.records
    assert (line.name, line.levelname) == ("duly", "CRITICAL")
    _, _, said = line.message.partition("guard.letters.put(")
    draft = eval(said.removesuffix(")"), {"DeadLetterDraft": DeadLetterDraft})  # noqa: S307 -as by hand
    letter = shop.guard.letters.get(shop.guard.letters.put(draft))
    assert (letter.task, letter.arguments) == (shop.tasks.endless.name, '[[],{"order_id":1}]')


def test_a_call_can_be_refused_while_an_equal_one_is_queued_or_running(shop):
    unique, graceful = shop.tasks.unique, shop.tasks.graceful
    results = [unique.delay(1), graceful.delay(1)]
    with pytest.raises(AlreadyQueued, match=r"shop\.unique") as caught:
        unique.delay(1, attempt=2)
    assert 3500 < caught.value.countdown <= 3600
    assert graceful.delay(1, 2).state == "REJECTED"
    results.append(unique.delay(2))

    shop.worker("--concurrency", "3")
    shop.wait_for("began", 3)
    with pytest.raises(AlreadyQueued):
        unique.delay(1, attempt=2)
    assert graceful.delay(1, 2).state == "REJECTED"
    shop.open_gate()

    assert [result.get(WAIT) for result in results] == [0, 0, 0]
    # The task has ended, so an equal call gets its result.
    assert unique.delay(1, attempt=2).get(WAIT) == 0
    assert shop.count("began") == 3


@pytest.fixture
def sending(store_url):
    """Yield an application whose messages no worker fetches."""
    with closing(Guard(store_url)) as guard:
        yield Celery("sending", broker="memory://", guard=guard, set_as_current=False)


def unsent(sending: Celery, name: str, **options) -> celery.Task:
    """Define a task with one parameter that counts for the key and one that need not."""

    def pay(order_id: int, attempt: int = 0) -> int:
        return order_id

    return sending.task(pay, name=name, shared=False, **options)


def test_a_call_that_never_began_blocks_equal_calls_until_its_lock_expires(sending):
    long = unsent(sending, "long", raise_on_duplicate=True, lock_expiry=50)
    short = unsent(sending, "short", raise_on_duplicate=True, lock_expiry=0.05)

    long.delay(1)
    with pytest.raises(AlreadyQueued) as caught:
        long.delay(1)
    assert 0 < caught.value.countdown <= 50

    def is_sent() -> bool:
        try:
            return bool(short.delay(1))
        except AlreadyQueued:
            return False

    assert is_sent()
    wait_until(is_sent, seconds=WAIT, what="it may be sent again")


def test_the_once_option_of_celery_once_is_understood(sending):
    loud = unsent(sending, "loud", once={"keys": ["order_id"], "timeout": 50})
    quiet = unsent(sending, "quiet", once={"graceful": True})

    loud.delay(1)
    with pytest.raises(AlreadyQueued) as caught:
        loud.delay(1, attempt=2)
    quiet.delay(1)

    assert 0 < caught.value.countdown <= 50
    assert quiet.delay(1).state == "REJECTED"
    assert quiet.delay(1, attempt=2).id is not None, "the calls are different"


@pytest.mark.parametrize("wrong", [{"unlock_before_run": True}, {"grateful": True}, True])
def test_a_once_option_that_cannot_be_honoured_is_refused(sending, wrong):
    with pytest.raises(BadOption, match="once"):
        unsent(sending, "wrong", once=wrong).delay(1)
    with pytest.raises(BadOption, match="once"):
        unsent(sending, "plain", once={"graceful": False}).apply_async((1,), once=wrong)


def test_a_frozen_holder_cannot_finish(shop, store_url):
    shop.worker("--concurrency", "1")
    shop.worker("--concurrency", "1")
    first = shop.tasks.linger.delay(1)
    shop.wait_for("began")
    ((_, frozen),) = shop.notes("began")
    freeze(store_url, frozen)
    second = shop.tasks.linger.delay(1)
    shop.wait_for("began", 2)
    shop.open_gate()

    assert second.get(WAIT) == 1
    thaw(frozen)

    wait_until(
        lambda: f"linger[{first.id}] reject requeue=True: claim 1 of key" in shop.logs(),
        seconds=WAIT,
        what="the result of the late task is refused, and its message is requeued",
    )
    assert first.get(WAIT) == 1
    assert {pid for _, pid in shop.notes("ended")} == {pid for _, pid in shop.notes("began")}
    known = shop.guard.look(shop.tasks.linger.key_for((1,), {}))
    assert (shop.count("began"), known.state) == (2, "done")
    assert shop.guard.letters.list() == []


def test_dead_letters_of_a_task_with_its_own_guard_can_be_replayed(shop, store_url):
    guard = Guard(store_url, namespace="own", lease=2)

    def fails(order_id: int) -> None:
        shop.tasks.note("tried", order_id)
        raise ValueError("no")

    task = shop.tasks.app.task(fails, name="fails", guard=guard, shared=False)
    with closing(guard):
        assert task.apply((1,)).state == FAILURE
        (letter,) = guard.letters.list()
        shop.tasks.app.conf.task_always_eager = True
        try:
            assert guard.letters.replay(letter.id) == (1, 0, ())
        finally:
            shop.tasks.app.conf.task_always_eager = False
    assert shop.count("tried") == 2


@pytest.mark.parametrize("name", ["graceful", "unique"])
def test_a_replay_that_is_refused_as_a_duplicate_leaves_its_dead_letter_open(shop, name):
    task, letters = getattr(shop.tasks, name), shop.guard.letters
    first, second = (
        write_dead_letter(task, (1,), {}, cause="sent", error=None, key=None, attempts=1)
        for _ in range(2)
    )

    assert letters.replay(first).done == 1
    with pytest.raises(LetterNotSent, match="an equal call of"):
        letters.replay(second)

    assert letters.get(second).state == "open"


def test_a_guard_of_two_applications_replays_each_dead_letter_in_its_own_application(store_url):
    ran = []

    def open_one(name: str, guard: Guard) -> celery.Task:
        app = Celery(name, guard=guard)
        app.conf.task_always_eager = True

        def pay(order_id: int) -> None:
            ran.append((name, order_id))

        return app.task(pay, name="pay", shared=False)

    with closing(Guard(store_url)) as guard:
        for number, task in enumerate([open_one("shop", guard), open_one("bank", guard)]):
            write_dead_letter(task, (number,), {}, cause="sent", error=None, key=None, attempts=1)

        assert guard.letters.replay(which=DeadLetterFilter()).done == 2

    assert sorted(ran) == [("bank", 1), ("shop", 0)]


def test_messages_are_postponed_and_not_run_while_the_ledger_is_unavailable(
    open_shop, private_redis
):
    shop = open_shop(private_redis.url())
    shop.worker()
    assert shop.tasks.charge.delay(1).get(WAIT)["order"] == 1
    private_redis.kill9()
    result = shop.tasks.charge.delay(2)

    wait_until(lambda: result.state == RETRY, seconds=WAIT, what="the message is postponed")
    assert shop.count("charged") == 1
    private_redis.start()

    assert result.get(WAIT)["order"] == 2
    assert shop.count("charged") == 2


def test_a_call_that_no_longer_fits_its_task_becomes_a_dead_letter(shop):
    assert shop.tasks.charge.apply((1, "EUR", "and more")).state == FAILURE

    (letter,) = shop.guard.letters.list()
    assert "and more" in letter.arguments


def test_a_call_that_can_have_no_key_becomes_a_dead_letter(shop):
    result = shop.tasks.charge.apply((float("nan"),))

    assert result.state == FAILURE
    (letter,) = shop.guard.letters.list()
    assert (letter.cause, letter.key) == ("permanent", None)
    assert "nan" in letter.arguments


def test_a_task_that_is_called_directly_is_not_guarded(shop):
    async def later(order_id: int) -> int:
        shop.tasks.note("charged", order_id)
        return order_id

    coroutine_task = shop.tasks.app.task(later, name="later", shared=False)

    assert [shop.tasks.charge(1) for _ in range(2)] == [{"order": 1, "currency": "EUR"}] * 2
    assert [asyncio.run(coroutine_task(1)) for _ in range(2)] == [1, 1]
    assert shop.count("charged") == 4


def test_a_task_that_returns_an_unawaited_coroutine_becomes_a_dead_letter(shop):
    def begin(order_id: int) -> object:
        return asyncio.sleep(0, order_id)

    task = shop.tasks.app.task(begin, name="begin", shared=False)

    assert task.apply((1,)).state == FAILURE
    (letter,) = shop.guard.letters.list()
    assert "may not have finished" in letter.error
    assert shop.guard.look(letter.key).state == "failed"


def test_an_eager_call_is_guarded(shop):
    assert [shop.tasks.charge.apply((1,)).get()["order"] for _ in range(2)] == [1, 1]

    assert shop.count("charged") == 1


def test_a_task_sets_how_long_its_keys_are_kept_and_each_key_can_be_reset(shop):
    def kept_seconds(name: str, key_ttl: float | None) -> float | None:
        task = unsent(shop.tasks.app, name, key_ttl=key_ttl)
        assert task.apply((1,)).get() == 1
        known = shop.guard.look(task.key_for((1,), {}))
        return known.kept_until and (known.kept_until - known.ended_at) / 1e6

    assert (kept_seconds("week", 604_800), kept_seconds("ever", None)) == (604_800, None)
    charge, key = shop.tasks.charge, shop.tasks.charge.key_for((1,), {})
    assert [charge.apply((1,)).get()["order"] for _ in range(2)] == [1, 1]
    assert shop.guard.reset(key)
    charge.apply((1,))
    assert shop.count("charged") == 2


def test_a_task_can_read_its_claim(shop):
    def fenced(self, order_id: int) -> list:
        self.claim.check()
        return [self.claim.fence, self.claim.key]

    task = shop.tasks.app.task(fenced, name="fenced", bind=True, shared=False)
    first, second = (task.apply((number,)).get() for number in (1, 2))

    assert first[0] < second[0]
    assert first[1] == task.key_for((1,), {})
    with pytest.raises(DulyError, match="only while a worker runs it"):
        _ = task.claim


def test_a_task_that_leaves_without_a_result_may_run_again(shop):
    def leave(order_id: int) -> None:
        shop.tasks.note("tried", order_id)
        raise Ignore

    task = shop.tasks.app.task(leave, name="leave")
    for _ in range(2):
        task.apply((1,))

    assert shop.count("tried") == 2
    assert shop.guard.letters.list() == []


def test_the_result_of_a_task_that_has_not_completed_is_never_success(shop):
    worker = shop.worker()
    result = shop.tasks.linger.delay(1)
    shop.wait_for("began")
    worker.kill()
    shop.worker()
    shop.wait_for("began", 2)
    assert result.state != SUCCESS
    shop.open_gate()

    assert result.get(WAIT) == 1
    assert shop.count("ended") == 1

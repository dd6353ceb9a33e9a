"""Asynchronous exceptions, such as time limits, that interrupt the guard's own calls."""

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic
from typing import Any

import pytest

from duly.guard import Busy, Guard
from duly.guard.dead_letters import DeadLetterDraft
from duly.store.ops.guard import AcquireKey, FinishKey
from tests.servers.kinds import POSTGRES_KINDS
from tests.servers.summary import STORE_PROPERTY
from tests.strikes import Strike, Struck, striker

LEASE = 60.0
"""Long enough that it never expires in these tests."""
AT_ONCE = 5.0
TIMEOUT = 20.0
HEARD = threading.Event()
"""Set when the handler of `rings` has raised."""
GUARD = tuple(
    f"duly/guard/{name}.py"
    for name in ("entry", "claim", "threads", "guard", "idempotency", "dead_letters")
)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request, tmp_path, servers) -> Iterator[str]:
    """The address of an empty ledger of each kind."""
    kind = {"sqlite": "sqlite-wal", "postgres": POSTGRES_KINDS[-1]}.get(request.param, "redis")
    request.node.user_properties.append((STORE_PROPERTY, kind))
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'guard.db'}"
    elif request.param == "redis":
        yield servers.redis().empty_database()
    else:
        server = servers.postgres(kind)
        url = server.create_database(template=servers.template(kind))
        yield url
        server.drop_database(url)


@pytest.fixture
def guard(url) -> Iterator[Guard]:
    """A guard on that ledger, already used once so that everything is open."""
    with closing(Guard(url, lease=LEASE)) as guard:
        with guard.once("anything"):
            pass
        yield guard


@pytest.fixture
def effects() -> list[str]:
    """The effects of the bodies."""
    return []


@pytest.fixture
def body(guard, effects) -> Callable[[str], None]:
    """A body whose effect and end are one instruction, so an interrupt cannot separate them."""
    return guard.idempotent(key=str, name="body", wait=AT_ONCE)(effects.append)


def is_over(thread: threading.Thread) -> bool:
    """Return whether the thread ended before the timeout."""
    thread.join(TIMEOUT)
    return not thread.is_alive()


class TestInterruptsAtEveryInstruction:
    """Each instruction is interrupted in turn."""

    def test_an_interrupted_body_has_its_effect_once_and_its_key_is_free_immediately(
        self, body, effects
    ):
        for number in itertools.count():
            key = f"key {number}"
            strike = Strike(number, *GUARD)
            struck = threading.Thread(
                target=strike.call, args=(lambda key=key: body(key),), daemon=True
            )
            struck.start()
            assert is_over(struck), "the interrupted caller hangs"

            body(key)

            assert effects.count(key) == 1
            if not strike.has_struck:
                break
        assert number > 40

    @pytest.mark.filterwarnings(
        "ignore:coroutine .* was never awaited"
    )  # Interrupted before the await.
    def test_an_interrupted_coroutine_has_its_effect_once_and_its_key_is_free_immediately(
        self, guard, effects
    ):
        @guard.idempotent(key=str, name="coroutine", wait=AT_ONCE)
        async def body(key: str) -> None:
            effects.append(key)

        for number in itertools.count():
            key = f"key {number}"
            strike = Strike(number, *GUARD, "duly/async_threads.py")
            strike.call(lambda key=key: asyncio.run(body(key)))

            asyncio.run(body(key))

            assert effects.count(key) == 1
            if not strike.has_struck:
                break
        assert number > 40

    def test_an_interrupted_block_has_released_its_key_or_is_done(self, guard):
        def enter(key: str) -> None:
            with guard.once(key) as claim:
                claim.done("paid")

        for number in itertools.count():
            key = f"key {number}"
            strike = Strike(number, *GUARD)
            strike.call(lambda key=key: enter(key))

            with guard.once(key, wait=AT_ONCE) as claim:
                assert claim.first or claim.result == "paid"
            if not strike.has_struck:
                break

    def test_a_dead_letter_is_stored_completely_or_not_at_all(self, guard):
        draft = DeadLetterDraft("celery", "shop.charge", "[]", "permanent", "no money")
        for number in itertools.count():
            strike = Strike(number, *GUARD)
            strike.call(lambda: guard.letters.put(draft))
            assert len(guard.letters.list(limit=200)) <= number + 1
            if not strike.has_struck:
                break
        assert guard.letters.list(limit=200)[0].error == "no money"


# The interpreter ignores exceptions in callbacks of weak references, with a warning.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function WeakSet:pytest.PytestUnraisableExceptionWarning"
)
class TestInterruptsAtRandomMoments:
    """Interrupts by the clock, also inside the interpreter."""

    def test_an_exception_from_another_thread_does_not_repeat_an_effect(self, body, effects):
        draw = random.Random(7)  # noqa: S311 - repeatable, not secret
        found: Counter[bool] = Counter()
        longest = shortest_call(body)
        effects.clear()

        def call_often(first: int) -> None:
            with striker() as thrower:
                for number in range(first, first + 25):
                    key = f"key {number}"
                    seconds = draw.random() * longest
                    found[thrower.call(lambda key=key: body(key), seconds)] += 1
                    body(key)

        threads = [threading.Thread(target=call_often, args=(n * 100,)) for n in range(3)]
        for thread in threads:
            thread.start()
        assert all(is_over(thread) for thread in threads), "a caller hangs"

        assert found[True] > 5
        assert max(Counter(effects).values()) == 1
        assert len(effects) == 75

    def test_an_alarm_does_not_repeat_an_effect(self, body, effects):
        draw = random.Random(8)  # noqa: S311 - repeatable, not secret
        found: Counter[bool] = Counter()
        longest = shortest_call(body)
        effects.clear()
        for number in range(60):
            key = f"key {number}"
            found[rings(lambda key=key: body(key), 0.00005 + draw.random() * longest)] += 1
            body(key)

        assert found[True] > 5
        assert Counter(effects) == Counter(f"key {number}" for number in range(60))


def shortest_call(body: Callable[[str], object]) -> float:
    """Return the seconds of a quick call, so that most interrupts arrive before a call ends."""
    took = []
    for number in range(10):
        began = monotonic()
        body(f"measured {number}")
        took.append(monotonic() - began)
    return min(took)


def rings(act: Callable[[], object], seconds: float = 0) -> bool:
    """Call the function and let a signal interrupt it after this time, as RQ does.

    Return whether the signal raised. Without a time, another thread must send the signal.
    """

    def ring(_number: int, _frame: object) -> None:
        if not HEARD.is_set():
            HEARD.set()
            raise Struck

    HEARD.clear()
    before = signal.signal(signal.SIGALRM, ring)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            act()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Struck:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)
    return False


class TestInterruptsDuringLedgerCalls:
    """Interrupts while a call of the ledger is in progress."""

    @pytest.fixture
    def slow(self, guard, monkeypatch) -> Callable[..., threading.Event]:
        """A function that delays ops of a kind until its event is set, and can send one signal."""
        apply = guard.ledger.apply

        def hold_up(kind: type, *, ring: bool = False) -> threading.Event:
            may_continue = threading.Event()

            def slowly(ops: Any) -> Any:
                if isinstance(ops[0], kind):
                    # A signal that arrives just before the main thread waits does not wake it.
                    while ring and not HEARD.is_set():
                        os.kill(os.getpid(), signal.SIGALRM)
                        HEARD.wait(0.05)
                    assert may_continue.wait(TIMEOUT)
                return apply(ops)

            monkeypatch.setattr(guard.ledger, "apply", slowly)
            return may_continue

        return hold_up

    def test_the_end_of_a_body_is_recorded_before_the_interrupt_reaches_the_caller(
        self, body, effects, slow
    ):
        threading.Timer(0.15, slow(FinishKey, ring=True).set).start()
        assert rings(lambda: body("key"))

        assert effects == ["key"]
        body("key")
        assert effects == ["key"]

    def test_a_key_acquired_during_an_interrupt_is_free_before_the_interrupt_reaches_the_caller(
        self, guard, slow
    ):
        threading.Timer(0.15, slow(AcquireKey, ring=True).set).start()
        assert rings(lambda: guard.once("key").__enter__())

        with guard.once("key") as claim:
            assert (claim.first, claim.losses) == (True, 0)

    def test_an_interrupted_caller_does_not_wait_forever(self, guard, slow, monkeypatch):
        monkeypatch.setattr("duly.guard.threads._LINGER_SECONDS", 0.05)
        with guard.once("key") as claim:
            may_continue = slow(FinishKey, ring=True)
            assert rings(lambda: claim.done("paid"))
            may_continue.set()

        with guard.once("key", wait=AT_ONCE) as claim:
            assert claim.result == "paid"

    def test_the_finalizer_of_a_claim_does_not_reopen_a_closed_guard(self, guard):
        claim = guard.once("key").__enter__()
        finalizer = claim._lease.finalizer

        guard.close()
        finalizer.run()

        assert not guard._open.is_open

    def test_a_coroutine_whose_loop_is_interrupted_releases_its_key(self, guard):
        async def enter() -> None:
            async with guard.once("key"):
                await asyncio.sleep(TIMEOUT)

        assert rings(lambda: asyncio.run(enter()), 0.1)

        with guard.once("key", wait=AT_ONCE) as claim:
            assert claim.first

    def test_a_caller_waits_only_for_its_own_key(self, guard, slow):
        may_continue = slow(FinishKey)

        def finish(key: str) -> None:
            with guard.once(key) as claim:
                claim.done("paid")

        waiting = [threading.Thread(target=finish, args=(f"key {n}",)) for n in range(6)]
        for thread in waiting:
            thread.start()
        with guard.once("another") as claim:
            claim.fail()
        may_continue.set()

        assert all(is_over(thread) for thread in waiting)


class TestProcesses:
    """Threads do not survive a fork, and no thread starts while the interpreter ends."""

    def test_a_forked_child_starts_its_own_threads(self, body, effects):
        body("before")
        child = os.fork()
        if child == 0:
            try:
                body("before")
                body("after")
                os._exit(0 if effects == ["before", "after"] else 1)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        body("after")
        assert effects == ["before"]

    def test_a_child_that_is_forked_while_a_key_is_held_does_not_release_the_key(self, guard):
        with guard.once("key") as claim:
            child = os.fork()
            if child == 0:
                del claim
                os._exit(0)
            os.waitpid(child, 0)
            with pytest.raises(Busy):
                guard.once("key").__enter__()
            claim.done("paid")

    def test_a_guard_works_in_an_atexit_function(self, url):
        script = (
            "import atexit, sys; from duly.guard import Guard\n"
            "guard = Guard(sys.argv[1])\n"
            "say = lambda text: guard.idempotent(name=text)(lambda: print(text))()\n"
            "atexit.register(say, 'second')\n"
            "say('first')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, url], capture_output=True, timeout=TIMEOUT, check=False
        )

        assert (done.returncode, done.stderr.decode()) == (0, "")
        assert done.stdout.split() == [b"first", b"second"]

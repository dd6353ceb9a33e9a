"""A guarded body runs once per key, and later callers get its result."""

import asyncio
import dataclasses
import gc
import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from duly import BadOption, PayloadError, StoreUnavailable, faultpoints
from duly.errors import StoreFull, StoreRefused
from duly.guard import Busy, ClaimLost, Guard, KeyConflict
from duly.guard.ledgers import open_ledger
from tests.servers.processes import wait_until


@pytest.fixture
def guard(store_url):
    """A guard with short leases."""
    with closing(Guard(store_url, lease=1)) as guard:
        yield guard


@pytest.fixture
def other(store_url):
    """A second guard, which the store treats as another process."""
    with closing(Guard(store_url, lease=1)) as guard:
        yield guard


def freeze(claim):
    """Stop the renewal of a claim's lease, as if its process had stopped."""
    claim._lease._ended(claim._lease)


class TestOnce:
    """`with guard.once(key) as claim:`."""

    def test_the_first_caller_runs_the_body_and_later_ones_get_its_result(self, guard, other):
        with guard.once("invoice:42") as claim:
            assert claim.first
            claim.done({"id": "ch_1"})
            assert claim.result == {"id": "ch_1"}

        for each in (guard, other):
            with each.once("invoice:42") as claim:
                assert not claim.first
                assert claim.result == {"id": "ch_1"}

    def test_a_guard_reads_the_settings_for_its_name_at_its_first_block(self, guard, monkeypatch):
        monkeypatch.setenv("DULY_ACTOR", "ann")
        with guard.once("first"):
            pass
        monkeypatch.setenv("DULY_ACTOR", "bob")

        with guard.once("second"):
            holder = guard.look("second").holder

        assert holder == "ann"

    def test_wrong_settings_hinder_no_caller_that_takes_no_key(self, guard, monkeypatch):
        monkeypatch.setenv("DULY_BEAT", "soon")

        assert guard.look("invoice:42") is None
        assert not guard.reset("invoice:42")
        with pytest.raises(BadOption, match="DULY_BEAT"), guard.once("invoice:42"):
            pass

    def test_a_block_that_ends_without_an_explicit_outcome_is_done(self, guard):
        with guard.once("invoice:42"):
            pass

        with guard.once("invoice:42") as claim:
            assert not claim.first
            assert claim.result is None

    def test_a_held_key_raises_busy_with_the_remaining_lease(self, guard, other):
        with guard.once("invoice:42"), pytest.raises(Busy, match="invoice:42") as caught:
            other.once("invoice:42").__enter__()

        assert 0 < caught.value.retry_after <= 1

    def test_a_failed_body_may_be_tried_again(self, guard):
        with pytest.raises(ZeroDivisionError), guard.once("invoice:42"):
            1 / 0  # noqa: B018

        with guard.once("invoice:42") as claim:
            assert (claim.first, claim.attempts, claim.losses) == (True, 2, 0)

    def test_a_body_that_marks_its_claim_as_failed_may_be_tried_again(self, guard):
        with guard.once("invoice:42") as claim:
            claim.fail()

        with guard.once("invoice:42") as claim:
            assert claim.first

    def test_a_caller_that_waits_gets_the_result_when_the_body_ends(self, guard, other):
        entered = threading.Event()

        def run() -> None:
            with guard.once("invoice:42") as claim:
                entered.set()
                threading.Event().wait(0.3)
                claim.done("paid")

        body = threading.Thread(target=run)
        body.start()
        entered.wait(10)
        with other.once("invoice:42", wait=20) as claim:
            assert claim.result == "paid"
        body.join()

    def test_equal_keys_in_different_namespaces_are_different_keys(self, store_url, guard):
        with closing(Guard(store_url, namespace="tenant-2")) as second, guard.once("invoice:42"):
            with second.once("invoice:42") as claim:
                assert claim.first
            with guard.once("tenant-2/invoice:42") as claim:
                assert claim.first

    def test_one_key_with_two_payloads_is_a_conflict(self, guard):
        with guard.once("invoice:42", payload={"sum": 1}) as claim:
            claim.done()

        with guard.once("invoice:42", payload={"sum": 1}) as claim:
            assert not claim.first
        with pytest.raises(KeyConflict, match=r"guard\.reset"):
            guard.once("invoice:42", payload={"sum": 2}).__enter__()

    def test_a_result_is_forgotten_after_its_ttl(self, guard):
        with guard.once("invoice:42", ttl=0.2):
            pass

        wait_until(lambda: guard.look("invoice:42") is None, seconds=10, what="it is forgotten")
        with guard.once("invoice:42") as claim:
            assert claim.first

    def test_a_result_that_cannot_be_stored_does_not_make_the_body_run_again(self, guard):
        with guard.once("invoice:42") as claim:
            claim.done(threading.Lock())

        with guard.once("invoice:42") as claim:
            assert not claim.first
            with pytest.raises(PayloadError, match="not stored"):
                claim.result  # noqa: B018

    def test_fences_only_grow(self, guard):
        fences = []
        for key in ("a", "b", "a"):
            with guard.once(key) as claim:
                fences.append(claim.fence)
                claim.fail()

        assert fences == sorted(set(fences))

    def test_a_claim_can_be_ended_only_once(self, guard):
        with guard.once("invoice:42") as claim:
            claim.done()
            with pytest.raises(RuntimeError, match="has already ended"):
                claim.fail()
        with (
            guard.once("invoice:42") as claim,
            pytest.raises(RuntimeError, match="does not hold the key"),
        ):
            claim.done()


class TestLease:
    """A holder that is slow, frozen or dead."""

    def test_a_body_that_runs_for_three_times_its_lease_and_ttl_keeps_its_key(self, guard, other):
        with guard.once("invoice:42", ttl=1) as claim:
            until = time.monotonic() + 3 * guard.lease
            while time.monotonic() < until:
                threading.Event().wait(0.1)
                with pytest.raises(Busy):
                    other.once("invoice:42", ttl=1).__enter__()
            claim.check()
            claim.done("paid")

        found = other.look("invoice:42")
        assert found is None or (found.state, found.attempts) == ("done", 1)

    def test_a_holder_that_does_not_renew_its_lease_is_replaced(self, guard, other):
        with guard.once("invoice:42") as lost:
            freeze(lost)
            with other.once("invoice:42", wait=20) as claim:
                assert (claim.first, claim.losses) == (True, 1)
                assert claim.fence > lost.fence
                claim.done("second")
            assert not lost.is_held
            with pytest.raises(ClaimLost, match="invoice:42"):
                lost.done("first")

        with guard.once("invoice:42") as claim:
            assert claim.result == "second"

    def test_a_replaced_holder_detects_its_loss(self, guard, other):
        with guard.once("invoice:42") as lost:
            hold = lost._lease
            freeze(lost)
            with other.once("invoice:42", wait=20):
                guard._open.get().renewer.add(hold)
                assert hold.lost.wait(10)
                with pytest.raises(ClaimLost):
                    lost.check()
            lost._lease.begin_end()

    def test_a_replaced_holder_that_fails_does_not_change_the_result_of_its_successor(
        self, guard, other
    ):
        with pytest.raises(ZeroDivisionError), guard.once("invoice:42") as lost:  # noqa: PT012
            freeze(lost)
            with other.once("invoice:42", wait=20) as claim:
                claim.done("second")
            1 / 0  # noqa: B018

        with guard.once("invoice:42") as claim:
            assert claim.result == "second"

    @pytest.mark.parametrize("outage", [StoreUnavailable, StoreFull])
    def test_a_body_is_done_after_a_short_outage_of_the_store(self, guard, outage):
        failures = iter([outage("away")] * 2)

        def strike() -> None:
            for failure in failures:
                raise failure

        with guard.once("invoice:42") as claim:
            faultpoints.arm("operate.before_write", strike)
            claim.done("paid")

        with guard.once("invoice:42") as claim:
            assert claim.result == "paid"

    def test_a_body_does_not_run_while_the_store_is_unavailable(self, guard):
        def strike() -> None:
            message = "away"
            raise StoreUnavailable(message)

        guard.look("open it")
        faultpoints.arm("operate.before_write", strike)

        with pytest.raises(StoreUnavailable):
            guard.once("invoice:42").__enter__()

    def test_a_long_outage_raises_once_and_the_key_is_free_after_its_lease(self, guard, other):
        ops: list = []

        def strike() -> None:
            ops.append(1)
            raise StoreUnavailable("away")

        with guard.once("invoice:42") as claim:
            faultpoints.arm("operate.before_write", strike)
            with pytest.raises(StoreUnavailable):
                claim.done("paid")
            tries = len(ops)
        assert len(ops) == tries, "leaving the block made another attempt"
        faultpoints.disarm()

        with other.once("invoice:42", wait=20) as claim:
            assert (claim.first, claim.losses) == (True, 1)

    def test_a_garbage_collected_claim_is_released(self, guard, other):
        once = guard.once("invoice:42")
        once.__enter__()
        del once
        gc.collect()

        with other.once("invoice:42", wait=20) as claim:
            assert (claim.first, claim.losses) == (True, 0)


class TestAsync:
    """`async with guard.once(key) as claim:`."""

    def test_a_guard_works_in_coroutines(self, guard, other):
        async def main() -> None:
            async with guard.once("invoice:42") as claim:
                assert claim.first
                with pytest.raises(Busy):
                    async with other.once("invoice:42"):
                        pass
                await claim.adone("paid")
            async with other.once("invoice:42") as claim:
                assert not claim.first
                assert claim.result == "paid"

        asyncio.run(main())

    def test_a_cancelled_coroutine_releases_its_key(self, guard, other):
        async def body(entered: asyncio.Event) -> None:
            async with guard.once("invoice:42"):
                entered.set()
                await asyncio.sleep(60)

        async def main() -> None:
            entered = asyncio.Event()
            task = asyncio.create_task(body(entered))
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with other.once("invoice:42") as claim:
                assert claim.first

        asyncio.run(main())

    def test_a_coroutine_that_is_cancelled_during_adone_is_done(self, guard):
        is_saving, may_continue = threading.Event(), threading.Event()

        def hold_up() -> None:
            is_saving.set()
            may_continue.wait(10)

        async def body(entered: asyncio.Event) -> None:
            async with guard.once("invoice:42") as claim:
                faultpoints.arm("operate.before_write", hold_up)
                entered.set()
                await claim.adone("paid")

        async def main() -> None:
            entered = asyncio.Event()
            task = asyncio.create_task(body(entered))
            await entered.wait()
            await asyncio.to_thread(is_saving.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            may_continue.set()

        asyncio.run(main())
        wait_until(lambda: guard.look("invoice:42").state == "done", seconds=10, what="it is done")

    def test_one_of_many_coroutines_runs_the_body(self, guard):
        ran = []

        @guard.idempotent(name="charge", wait=20)
        async def charge(order_id: int) -> str:
            ran.append(order_id)
            await asyncio.sleep(0.1)
            return "paid"

        async def main() -> list[str]:
            return await asyncio.gather(*(charge(42) for _ in range(8)))

        assert asyncio.run(main()) == ["paid"] * 8
        assert ran == [42]


@dataclasses.dataclass
class Receipt:
    """A result of a function."""

    id: str


async def _awaitable() -> None: ...


def _generator():
    yield 1


async def _both():
    yield 1


def _ended_future() -> asyncio.Future[int]:
    with closing(asyncio.new_event_loop()) as loop:
        future = loop.create_future()
    future.set_result(1)
    return future


class TestIdempotent:
    """`@guard.idempotent`."""

    def test_equal_calls_run_once_and_return_one_result(self, guard):
        ran = []

        @guard.idempotent(name="charge")
        def charge(order_id: int, currency: str = "EUR") -> Receipt:
            ran.append(order_id)
            return Receipt(f"ch_{order_id}")

        results = [charge(1), charge(order_id=1), charge(1, currency="EUR"), charge(2)]

        assert results == [Receipt("ch_1")] * 3 + [Receipt("ch_2")]
        assert ran == [1, 2]

    def test_a_custom_key_with_other_arguments_is_a_conflict(self, guard):
        @guard.idempotent(name="charge", key=lambda order_id, **_: f"order:{order_id}")
        def charge(order_id: int, *, cents: int) -> int:
            return cents

        assert charge(1, cents=10) == 10
        assert charge(order_id=1, cents=10) == 10
        with pytest.raises(KeyConflict):
            charge(1, cents=20)

    def test_a_colon_cannot_move_text_between_a_name_and_a_key(self, guard):
        @guard.idempotent(name="pay", key=lambda _: "eu:1")
        def one(order_id: int) -> str:
            return "one"

        @guard.idempotent(name="pay:eu", key=lambda _: "1")
        def other(order_id: int) -> str:
            return "other"

        assert (one(1), other(1)) == ("one", "other")

    def test_two_functions_may_use_the_same_key(self, guard):
        @guard.idempotent(name="charge", key=lambda order_id: f"order:{order_id}")
        def charge(order_id: int) -> str:
            return "charged"

        @guard.idempotent(name="ship", key=lambda order_id: f"order:{order_id}")
        def ship(order_id: int) -> str:
            return "shipped"

        assert (charge(1), ship(1)) == ("charged", "shipped")

    def test_arguments_that_cannot_be_stored_are_accepted_with_a_custom_key(self, guard):
        @guard.idempotent(name="charge", key=lambda order_id, _: str(order_id))
        def charge(order_id: int, session: object) -> int:
            return order_id

        assert [charge(1, object()), charge(1, object())] == [1, 1]

    def test_a_function_that_fails_may_be_called_again(self, guard):
        tries = []

        @guard.idempotent(name="charge")
        def charge(order_id: int) -> str:
            tries.append(order_id)
            if len(tries) == 1:
                raise ConnectionError
            return "paid"

        with pytest.raises(ConnectionError):
            charge(1)
        assert charge(1) == "paid"

    def test_a_call_runs_again_after_a_reset(self, guard):
        ran = []

        @guard.idempotent(name="charge")
        def charge(order_id: int) -> None:
            ran.append(order_id)

        charge(1)
        assert charge.reset(1)
        assert not charge.reset(1)
        charge(1)

        assert ran == [1, 1]

    def test_a_generator_function_is_refused(self, guard):
        def numbers():
            yield 1

        with pytest.raises(BadOption, match="generator"):
            guard.idempotent(numbers)

    def test_a_function_that_returns_an_unfinished_object_has_failed(self, guard):
        @guard.idempotent(name="charge")
        def charge(kind: str) -> object:
            return makes[kind]()

        makes = {
            "coroutine": _awaitable,
            "generator": _generator,
            "both": _both,
            "future": _ended_future,
        }
        for kind in makes:
            with pytest.raises(PayloadError, match="may not have finished"):
                charge(kind)
            assert guard.look(charge.key_for(kind)).state == "failed"

    def test_nested_functions_and_lambdas_need_an_explicit_name(self, guard):
        def make(currency: str) -> Callable[[int], str]:
            def charge(order_id: int) -> str:
                return f"{order_id} {currency}"

            return charge

        for function in (make("EUR"), lambda order_id: order_id):
            with pytest.raises(BadOption, match="name="):
                guard.idempotent(function)
        euros = guard.idempotent(name="euros")(make("EUR"))
        dollars = guard.idempotent(name="dollars")(make("USD"))

        assert (euros(1), dollars(1)) == ("1 EUR", "1 USD")


class TestOperating:
    """Look, reset, close, and invalid options."""

    def test_a_key_is_shown_with_its_state(self, guard):
        assert guard.look("invoice:42") is None
        with guard.once("invoice:42"):
            assert guard.look("invoice:42").state == "held"
        assert guard.look("invoice:42").state == "done"

    def test_an_entry_can_be_entered_only_once_at_a_time(self, guard):
        entry = guard.once("invoice:42")

        async def enter() -> None:
            async with entry:
                pass

        with entry as claim:
            with pytest.raises(RuntimeError, match="already entered"), entry:
                pass
            with pytest.raises(RuntimeError, match="already entered"):
                asyncio.run(enter())
            assert claim.is_held
        asyncio.run(enter())
        with entry as claim:
            assert not claim.first

    def test_an_entry_may_be_tried_again_after_busy(self, guard, other):
        entry = other.once("invoice:42")

        with guard.once("invoice:42"), pytest.raises(Busy), entry:
            pass
        with entry as claim:
            assert not claim.first

    def test_a_held_key_cannot_be_reset(self, guard):
        with guard.once("invoice:42"), pytest.raises(Busy):
            guard.reset("invoice:42")
        assert guard.reset("invoice:42")

    @pytest.mark.parametrize("key", ["", "x" * 513, "a\0b", "\ud800", 42, None])
    def test_an_invalid_key_is_refused(self, guard, key):
        with pytest.raises(BadOption):
            guard.once(key)

    @pytest.mark.parametrize("options", [{"lease": 0.1}, {"ttl": 0}, {"ttl": -1}])
    def test_an_invalid_lease_or_ttl_is_refused(self, store_url, options):
        with pytest.raises(BadOption):
            Guard(store_url, **options)

    @pytest.mark.parametrize("url", ["mysql://localhost/x", "guard.db"])
    def test_the_error_for_an_unknown_address_lists_the_kinds_of_ledgers(self, url):
        with pytest.raises(StoreRefused, match=r"sqlite:///.* postgresql://.* redis://"):
            Guard(url).look("k")

    def test_a_namespace_cannot_look_like_another(self, store_url):
        with pytest.raises(BadOption, match="'/'"):
            Guard(store_url, namespace="a/b")

    def test_a_body_that_ends_after_its_guard_was_closed_is_done_for_other_guards(
        self, guard, other
    ):
        with guard.once("invoice:42") as claim:
            guard.close()
            claim.done("paid")

        with other.once("invoice:42") as claim:
            assert claim.result == "paid"

    def test_losses_are_counted_even_with_a_short_ttl(self, other):
        for losses in range(3):
            with other.once("invoice:42", ttl=0.001, wait=20) as claim:
                assert claim.losses == losses
                freeze(claim)
                claim._lease.begin_end()

    def test_a_body_that_ends_after_its_guard_was_closed_is_done(self, guard):
        with guard.once("invoice:42") as claim:
            guard.close()
            claim.done("paid")

        with guard.once("invoice:42") as claim:
            assert claim.result == "paid"

    def test_a_closed_guard_opens_again_when_it_is_used(self, guard):
        with guard.once("invoice:42"):
            pass
        guard.close()

        with guard.once("invoice:42") as claim:
            assert not claim.first

    def test_closing_a_guard_closes_the_ledger_that_another_thread_is_opening(
        self, guard, monkeypatch
    ):
        opened, closed = threading.Event(), []
        is_opening, may_open = threading.Event(), threading.Event()

        def open_slowly(url, **options):
            is_opening.set()
            assert may_open.wait(10)
            ledger = open_ledger(url, **options)
            close = ledger.close
            monkeypatch.setattr(ledger, "close", lambda: closed.append(close()))
            opened.set()
            return ledger

        monkeypatch.setattr("duly.guard.guard.open_ledger", open_slowly)
        looking = threading.Thread(target=guard.look, args=("invoice:42",))
        looking.start()
        assert is_opening.wait(10)
        closing = threading.Thread(target=guard.close)
        closing.start()
        may_open.set()
        closing.join(10)
        looking.join(10)

        assert opened.is_set()
        assert len(closed) == 1

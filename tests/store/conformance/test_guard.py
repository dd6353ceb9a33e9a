"""A key of the guard has one holder. Its body runs once, and the result is kept."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from duly.store.ops.guard import (
    AcquireKey,
    FailKey,
    FinishKey,
    ForgetKey,
    Guarded,
    GuardedKey,
    RenewKey,
)
from tests.store.conformance.verbs import SECOND

pytestmark = [pytest.mark.redis, pytest.mark.pgbouncer]

LEASE = 30 * SECOND
TTL = 3600 * SECOND


def acquire(
    store: Any,
    owner: str = "a",
    key: str = "invoice:42",
    *,
    fingerprint: str | None = None,
    ttl: int | None = TTL,
) -> Guarded:
    op = AcquireKey(key, owner, f"holder {owner}", fingerprint, LEASE, ttl)
    return store.do(op)


def renew(store: Any, taken: Guarded, owner: str = "a") -> bool:
    return store.do(RenewKey("invoice:42", owner, taken.fence, LEASE))


def finish(
    store: Any, taken: Guarded, owner: str = "a", *, result: str | None = '"ok"', ttl: Any = TTL
) -> bool:
    return store.do(FinishKey("invoice:42", owner, taken.fence, ttl, result))


def fail(store: Any, taken: Guarded, owner: str = "a", *, began: bool = True) -> bool:
    return store.do(FailKey("invoice:42", owner, taken.fence, TTL, began))


class TestHolding:
    """Which owner may run a body."""

    def test_the_first_caller_holds_a_key_and_the_others_get_the_name_of_the_holder(
        self, store, clock
    ):
        taken = acquire(store)
        assert taken == Guarded(True, "held", taken.fence, "holder a", LEASE, 1, 0)
        clock.advance(10)

        found = acquire(store, "b")

        left = LEASE - 10 * SECOND
        assert found == Guarded(False, "held", taken.fence, "holder a", left, 1, 0)

    def test_a_repeated_acquire_of_the_same_owner_takes_the_key_once(self, store):
        assert acquire(store) == acquire(store)

    def test_only_one_of_many_concurrent_owners_gets_the_key(self, store):
        ready = threading.Barrier(8)

        def ask(number: int) -> bool:
            ready.wait()
            return acquire(store, str(number)).is_ours

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(8)))

        assert sum(answers) == 1

    def test_a_renewed_lease_has_its_full_length_again(self, store, clock):
        taken = acquire(store)
        clock.advance(20)

        assert renew(store, taken)

        clock.advance(29)
        assert not acquire(store, "b").is_ours

    def test_a_dead_holder_is_replaced_when_its_lease_ends_and_not_before(self, store, clock):
        taken = acquire(store)
        clock.advance(29.999999)
        assert not acquire(store, "b").is_ours

        clock.advance(0.000001)
        found = acquire(store, "b")

        assert found == Guarded(True, "held", found.fence, "holder b", LEASE, 2, 1)
        assert found.fence > taken.fence

    def test_losses_are_counted_until_an_attempt_ends(self, store, clock):
        for losses, owner in enumerate("abc"):
            taken = acquire(store, owner)
            assert (taken.losses, taken.attempts) == (losses, losses + 1)
            clock.advance(30)

        fail(store, taken, "c")

        assert acquire(store, "d").losses == 0

    def test_an_owner_that_was_replaced_can_neither_renew_nor_finish_nor_fail(self, store, clock):
        taken = acquire(store)
        clock.advance(30)
        replaced = acquire(store, "b")

        assert not renew(store, taken)
        assert not finish(store, taken)
        assert not fail(store, taken)
        assert finish(store, replaced, "b")

    def test_an_owner_that_was_not_replaced_may_finish_late(self, store, clock):
        taken = acquire(store)
        clock.advance(300)

        assert finish(store, taken)

        assert acquire(store, "b").state == "done"

    def test_an_owner_that_works_longer_than_results_are_kept_is_not_replaced(self, store, clock):
        taken = acquire(store, ttl=SECOND)
        clock.advance(2)

        assert not acquire(store, "b").is_ours

        assert store.get_key("invoice:42").state == "held"
        assert store.apply([ForgetKey("invoice:42")]) == [None]
        assert finish(store, taken)

    @pytest.mark.parametrize("end", [finish, fail])
    def test_an_owner_whose_attempt_has_ended_cannot_renew(self, store, end):
        taken = acquire(store)
        end(store, taken)

        assert not renew(store, taken)

    @pytest.mark.stores("sqlite")  # On PostgreSQL there is only the server's clock.
    def test_the_wall_clock_does_not_end_a_lease(self, store, clock):
        acquire(store)
        clock.set_back(-86_400)

        assert not acquire(store, "b").is_ours


class TestEnding:
    """How a body ends, and the consequences."""

    def test_a_key_that_is_done_returns_the_result(self, store):
        taken = acquire(store)
        assert finish(store, taken, result='{"id":"ch_1"}')

        found = acquire(store, "b")

        assert (found.is_ours, found.state, found.result) == (False, "done", '{"id":"ch_1"}')

    def test_a_finish_may_be_repeated(self, store):
        taken = acquire(store)

        assert finish(store, taken)
        assert finish(store, taken)
        assert not fail(store, taken)

    def test_a_key_whose_body_failed_can_be_acquired_at_once(self, store):
        assert fail(store, acquire(store))

        found = acquire(store, "b")

        assert (found.is_ours, found.attempts, found.losses) == (True, 2, 0)

    def test_a_body_that_did_not_begin_is_no_attempt_even_if_that_is_reported_twice(self, store):
        fail(store, acquire(store))
        taken = acquire(store, "b")

        assert fail(store, taken, "b", began=False)
        assert fail(store, taken, "b", began=False)

        assert acquire(store, "c").attempts == 2

    def test_a_result_is_deleted_at_the_end_of_its_time_and_not_before(self, store, clock):
        finish(store, acquire(store))
        clock.advance(3599.999999)
        assert not acquire(store, "b").is_ours

        clock.advance(0.000001)
        found = acquire(store, "b")

        assert (found.is_ours, found.attempts) == (True, 1)

    def test_a_result_that_is_kept_for_ever_is_not_deleted(self, store, clock):
        finish(store, acquire(store, ttl=None), ttl=None)
        clock.advance(20 * 365 * 86_400)

        assert acquire(store, "b").state == "done"

    def test_each_finish_deletes_a_few_expired_keys(self, store, clock):
        for number in range(3):
            taken = acquire(store, key=f"old:{number}")
            store.do(FinishKey(f"old:{number}", "a", taken.fence, SECOND))
        clock.advance(3600)

        finish(store, acquire(store))

        assert [store.get_key(f"old:{number}") for number in range(3)] == [None] * 3
        # The keys are deleted, not only hidden.
        assert [store.apply([ForgetKey(f"old:{number}")]) for number in range(3)] == [[False]] * 3

    def test_a_fence_grows_even_if_its_key_was_forgotten(self, store):
        taken = acquire(store)
        finish(store, taken)
        store.do(ForgetKey("invoice:42"))

        assert acquire(store, "b").fence > taken.fence

    def test_a_result_that_could_not_be_stored_is_reported(self, store):
        taken = acquire(store)
        store.do(FinishKey("invoice:42", "a", taken.fence, TTL, None, "it is a socket"))

        assert acquire(store, "b").problem == "it is a socket"


class TestFingerprints:
    """The call that a key belongs to."""

    @pytest.mark.parametrize("end", [None, finish, fail])
    def test_a_key_belongs_to_the_fingerprint_that_it_was_first_used_with(self, store, end):
        taken = acquire(store, fingerprint="one")
        if end is not None:
            end(store, taken)

        found = acquire(store, "b", fingerprint="two")

        assert (found.is_ours, found.conflict) == (False, True)

    def test_the_key_of_a_dead_holder_keeps_its_fingerprint(self, store, clock):
        acquire(store, fingerprint="one")
        clock.advance(31)

        assert acquire(store, "b", fingerprint="two").conflict

    def test_the_same_fingerprint_or_none_matches(self, store):
        fail(store, acquire(store, fingerprint="one"))

        assert acquire(store, "b", fingerprint="one").is_ours
        assert not acquire(store, "c").conflict

    def test_an_expired_key_may_be_used_with_another_fingerprint(self, store, clock):
        finish(store, acquire(store, fingerprint="one"))
        clock.advance(3600)

        assert acquire(store, "b", fingerprint="two").is_ours


class TestForgetting:
    """Letting a body run again."""

    def test_a_key_that_is_done_can_be_forgotten(self, store):
        finish(store, acquire(store))

        assert store.apply([ForgetKey("invoice:42")]) == [True]
        assert store.apply([ForgetKey("invoice:42")]) == [False]
        assert acquire(store, "b").is_ours

    def test_a_held_key_can_be_forgotten_only_if_its_holder_is_dead(self, store, clock):
        acquire(store)
        assert store.apply([ForgetKey("invoice:42")]) == [None]

        clock.advance(30)

        assert store.apply([ForgetKey("invoice:42")]) == [True]


class TestLooking:
    """The keys as operators see them."""

    def test_a_key_is_shown_with_its_present_state(self, store, clock):
        assert store.get_key("invoice:42") is None
        began_at = clock.now()
        taken = acquire(store)
        clock.advance(5)

        held = store.get_key("invoice:42")
        finish(store, taken)
        done = store.get_key("invoice:42")

        left = LEASE - 5 * SECOND
        assert held == GuardedKey(
            "invoice:42", "held", "holder a", taken.fence, 1, 0, left, began_at, None,
            began_at + TTL, None, None,
        )  # fmt: skip
        assert done == held._replace(
            state="done",
            left=0,
            ended_at=began_at + 5 * SECOND,
            kept_until=began_at + 5 * SECOND + TTL,
            result='"ok"',
        )

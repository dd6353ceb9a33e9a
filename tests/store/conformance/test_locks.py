"""A lock has one owner until it is released or its time has passed."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from duly.core.record import LockRecord
from duly.store.ops.locks import AcquireLock, Locked, ReleaseLock, RenewLock
from tests.store.conformance.verbs import SECOND

pytestmark = pytest.mark.pgbouncer

TTL = 30 * SECOND


def acquire(store: Any, owner: str = "a", name: str = "index") -> Locked:
    return store.do(AcquireLock(name, owner, f"holder {owner}", TTL))


def renew(store: Any, owner: str = "a", fence: int = 1) -> bool:
    return store.do(RenewLock("index", owner, fence, TTL))


def release(store: Any, owner: str = "a", fence: int = 1) -> bool:
    return store.do(ReleaseLock("index", owner, fence))


def test_a_free_lock_is_taken_and_a_taken_lock_names_its_holder(store, clock):
    assert acquire(store) == Locked(True, 1, "holder a", TTL)
    clock.advance(10)

    assert acquire(store, "b") == Locked(False, 1, "holder a", TTL - 10 * SECOND)


def test_a_repeated_acquire_of_the_same_owner_takes_the_lock_once(store, clock):
    acquire(store)
    clock.advance(10)

    assert acquire(store) == Locked(True, 1, "holder a", TTL - 10 * SECOND)


def test_a_released_lock_is_free_and_its_fence_has_grown(store):
    acquire(store)

    assert release(store)
    assert not release(store)
    assert acquire(store, "b") == Locked(True, 2, "holder b", TTL)


def test_another_owner_gets_a_lock_at_the_end_of_its_time_and_not_before(store, clock):
    acquire(store)
    clock.advance(29.999999)
    assert not acquire(store, "b").is_ours

    clock.advance(0.000001)

    assert acquire(store, "b") == Locked(True, 2, "holder b", TTL)


def test_a_renewed_lock_has_its_full_time_again(store, clock):
    acquire(store)
    clock.advance(29)
    assert renew(store)
    clock.advance(29)

    assert not acquire(store, "b").is_ours


def test_a_late_owner_may_renew_a_lock_that_was_not_taken(store, clock):
    acquire(store)
    clock.advance(100)

    assert renew(store)
    assert not acquire(store, "b").is_ours


def test_a_caller_that_is_not_the_owner_can_neither_renew_nor_release(store, clock):
    acquire(store)

    assert not renew(store, "b")
    assert not release(store, "b")
    assert not release(store, "a", fence=2)
    assert not acquire(store, "b").is_ours


def test_a_former_owner_can_neither_renew_nor_release(store, clock):
    acquire(store)
    clock.advance(30)
    acquire(store, "b")

    assert not renew(store)
    assert not release(store)
    assert acquire(store, "c").holder == "holder b"


def test_locks_of_different_names_are_independent(store):
    acquire(store)

    assert acquire(store, "b", name="other") == Locked(True, 1, "holder b", TTL)


def test_held_locks_are_listed_by_name(store, clock):
    acquire(store, name="over")
    clock.advance(25)
    for name in ("b", "a", "released"):
        acquire(store, name=name)
    store.do(ReleaseLock("released", "a", 1))
    clock.advance(10)

    held = [LockRecord(name, "holder a", 1, TTL - 10 * SECOND) for name in ("a", "b")]
    assert store.list_locks("", 10) == held
    assert store.list_locks("", 1) == held[:1]
    assert store.list_locks("a", 10) == held[1:]


# PostgreSQL has only the server's clock, and no client can set it.
@pytest.mark.stores("sqlite")
def test_setting_the_wall_clock_does_not_change_a_lock(store, clock):
    acquire(store)
    clock.set_back(-3600)
    assert not acquire(store, "b").is_ours
    clock.set_back(7200)
    clock.advance(30)

    assert acquire(store, "b").is_ours


def test_only_one_of_eight_concurrent_owners_gets_an_expired_lock(store, clock, open_another):
    stores = [store, *(open_another() for _ in range(7))]
    rounds = 50
    ready = threading.Barrier(len(stores), action=lambda: clock.advance(31))
    acquire(store)

    def race(place: int) -> list[int]:
        won = []
        for n in range(rounds):
            ready.wait()
            found = acquire(stores[place], f"{place}-{n}")
            if found.is_ours:
                won.append(found.fence)
        return won

    with ThreadPoolExecutor(len(stores)) as pool:
        fences = sorted(fence for won in pool.map(race, range(len(stores))) for fence in won)

    assert fences == list(range(2, rounds + 2))

"""A lock has one owner; it changes hands when it is released or its time is over, not before."""

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


def test_a_free_lock_is_taken_and_a_taken_one_says_by_whom(store, clock):
    assert acquire(store) == Locked(True, 1, "holder a", TTL)
    clock.advance(10)

    assert acquire(store, "b") == Locked(False, 1, "holder a", TTL - 10 * SECOND)


def test_asking_again_under_the_same_name_takes_it_once(store, clock):
    acquire(store)
    clock.advance(10)

    assert acquire(store) == Locked(True, 1, "holder a", TTL - 10 * SECOND)


def test_a_released_lock_is_free_and_its_fence_has_grown(store):
    acquire(store)

    assert release(store)
    assert not release(store)
    assert acquire(store, "b") == Locked(True, 2, "holder b", TTL)


def test_a_lock_changes_hands_at_its_end_and_not_before(store, clock):
    acquire(store)
    clock.advance(29.999999)
    assert not acquire(store, "b").is_ours

    clock.advance(0.000001)

    assert acquire(store, "b") == Locked(True, 2, "holder b", TTL)


def test_a_renewed_lock_has_its_whole_time_again(store, clock):
    acquire(store)
    clock.advance(29)
    assert renew(store)
    clock.advance(29)

    assert not acquire(store, "b").is_ours


def test_one_that_is_late_may_renew_what_nobody_took(store, clock):
    acquire(store)
    clock.advance(100)

    assert renew(store)
    assert not acquire(store, "b").is_ours


def test_who_is_not_the_owner_neither_renews_nor_releases(store, clock):
    acquire(store)

    assert not renew(store, "b")
    assert not release(store, "b")
    assert not release(store, "a", fence=2)
    assert not acquire(store, "b").is_ours


def test_a_former_owner_has_no_say(store, clock):
    acquire(store)
    clock.advance(30)
    acquire(store, "b")

    assert not renew(store)
    assert not release(store)
    assert acquire(store, "c").holder == "holder b"


def test_locks_of_other_names_have_nothing_to_do_with_it(store):
    acquire(store)

    assert acquire(store, "b", name="other") == Locked(True, 1, "holder b", TTL)


def test_the_locks_that_are_held_are_listed_by_name(store, clock):
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


# PostgreSQL has no clock beside the server's, and no host can set that.
@pytest.mark.stores("sqlite")
def test_a_wall_clock_that_is_set_moves_nothing(store, clock):
    acquire(store)
    clock.set_back(-3600)
    assert not acquire(store, "b").is_ours
    clock.set_back(7200)
    clock.advance(30)

    assert acquire(store, "b").is_ours


def test_of_eight_who_want_an_expired_lock_one_gets_it(store, clock, open_another):
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

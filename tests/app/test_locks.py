"""`app.lock` has one holder, is renewed while it is held, and reports its loss."""

import asyncio
import gc
import os
import threading
import time
from contextlib import closing

import pytest

from duly import BadOption, Duly, faultpoints
from duly.errors import LockBusy, LockLost, StoreUnavailable
from tests.servers.processes import wait_until
from tests.store.conformance.stores import opened_tables


@pytest.fixture
def other(store_url):
    """Another process on the same store."""
    other = Duly(store_url)
    yield other
    other.close()


def test_a_lock_has_one_holder_while_the_other_caller_waits(app, other):
    order: list[str] = []

    def second() -> None:
        with other.lock("index", timeout=20) as held:
            order.append(f"second {held.fence}")

    with app.lock("index") as held:
        thread = threading.Thread(target=second)
        thread.start()
        assert other.lock("index").try_acquire() is None
        order.append(f"first {held.fence}")
        assert held.is_held
    thread.join()

    assert order == ["first 1", "second 2"]
    assert not held.is_held


def test_a_lock_is_held_by_the_name_that_its_application_was_made_with(
    store_url, other, monkeypatch
):
    monkeypatch.setenv("DULY_ACTOR", "ann")
    with closing(Duly(store_url)) as app:
        monkeypatch.setenv("DULY_ACTOR", "bob")

        with app.lock("index"), pytest.raises(LockBusy, match="'index' is held by ann;"):
            other.lock("index", timeout=0).acquire()


def test_the_error_for_a_busy_lock_names_its_holder(app, other):
    with app.lock("index", ttl=5):
        with pytest.raises(LockBusy, match=r"'index' is held by .*@.*; it expires in \d"):
            other.lock("index", timeout=0).__enter__()
        began = time.monotonic()
        with pytest.raises(LockBusy):
            other.lock("index").acquire(timeout=0.2)

    assert 0.2 <= time.monotonic() - began < 5


def test_a_lock_works_in_coroutines(app, other):
    async def main() -> list[int]:
        fences = []
        inside = 0

        async def work(duly: Duly) -> None:
            nonlocal inside
            async with duly.lock("index") as held:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.01)
                fences.append(held.fence)
                inside -= 1

        await asyncio.gather(*(work(each) for each in (app, other) * 3))
        return fences

    assert asyncio.run(main()) == [1, 2, 3, 4, 5, 6]


def test_a_coroutine_that_is_cancelled_while_it_waits_acquires_no_lock(app, other):
    async def main() -> None:
        with app.lock("index"):
            waiting = asyncio.create_task(other.lock("index").aacquire())
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(main())
    app.lock("index").acquire(timeout=20).release()


def test_a_lock_is_renewed_while_it_is_held(app, other):
    with app.lock("index", ttl=1) as held:
        for _ in range(5):
            time.sleep(0.5)
            assert other.lock("index").try_acquire() is None
            held.check()


def test_a_lock_that_cannot_be_renewed_is_reported_as_lost(app, other, monkeypatch):
    lost_locks = []
    held = app.lock("index", ttl=1, on_lost=lost_locks.append).acquire()

    def gone(_ops):
        raise StoreUnavailable("gone")

    monkeypatch.setattr(app.store, "apply", gone)
    assert held.lost.wait(10)

    assert lost_locks == [held]
    assert not held.is_held
    with pytest.raises(LockLost, match="fence 1"):
        held.check()
    monkeypatch.undo()
    taken = other.lock("index").acquire(timeout=20)
    assert taken.fence == 2
    assert not held.release()
    assert taken.is_held
    taken.release()


def test_a_lock_that_another_process_acquired_is_lost(app, other, monkeypatch):
    held = app.lock("index", ttl=1).acquire()
    held._keepalive.stop()
    taken = other.lock("index", ttl=30).acquire(timeout=20)
    held._keepalive.tick()

    wait_until(held.lost.is_set, seconds=10, what="the lock is reported as lost")
    taken.release()


@pytest.mark.parametrize("ttl", [0, 0.5, -1, float("nan"), 10**9, "a"])
def test_the_ttl_of_a_lock_has_bounds(app, ttl):
    with pytest.raises(BadOption, match="ttl of a lock"):
        app.lock("index", ttl=ttl)


def test_the_name_of_a_lock_is_checked(app):
    with pytest.raises(BadOption):
        app.lock("")


def test_two_threads_that_share_a_lock_object_release_only_their_own_locks(app, other, store_url):
    lock = app.lock("index", ttl=30)
    first = lock.__enter__()
    first._keepalive.stop()
    with opened_tables(store_url) as tables:
        ago = "0" if store_url.startswith("sqlite") else "'1970-01-01'"
        tables.execute(f"UPDATE duly_locks SET expires_at = {ago}")  # noqa: S608
    entered, leaves = threading.Event(), threading.Event()

    def second() -> None:
        with lock:
            entered.set()
            leaves.wait(20)

    thread = threading.Thread(target=second)
    thread.start()
    assert entered.wait(20)

    lock.__exit__(None, None, None)

    assert other.lock("index").try_acquire() is None
    leaves.set()
    thread.join()


def test_a_forked_child_does_not_release_the_lock_of_its_parent(app, other):
    held = app.lock("index").acquire()
    child = os.fork()
    if child == 0:
        is_held = held.is_held
        held.release()
        os._exit(is_held)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert other.lock("index").try_acquire() is None
    held.release()


def test_a_loop_that_ends_during_acquire_leaves_the_lock_free(app, other):
    is_asking, may_continue = threading.Event(), threading.Event()

    def hold() -> None:
        faultpoints.disarm()
        is_asking.set()
        may_continue.wait(20)

    async def main() -> None:
        asyncio.create_task(app.lock("index").aacquire())  # noqa: RUF006 - abandoned on purpose
        await asyncio.to_thread(is_asking.wait, 20)

    app.runs.list()
    faultpoints.arm("operate.before_write", hold)
    asyncio.run(main())
    may_continue.set()

    held = other.lock("index").acquire(timeout=20)
    assert held.is_held
    held.release()


def test_a_closed_application_is_not_reopened_to_renew_a_lock(app):
    held = app.lock("index", ttl=1).acquire()
    app.close()

    assert held.lost.wait(10)
    assert app._store._opened is None


def test_the_timeout_of_a_lock_applies_to_acquire(app, other):
    with app.lock("index"), pytest.raises(LockBusy):
        other.lock("index", timeout=0.1).acquire()


def test_a_caller_that_acquires_its_own_lock_again_fails_immediately(app):
    with app.lock("index"), pytest.raises(LockBusy, match="this same thread"):
        app.lock("index").acquire()
    with app.lock("index").try_acquire(), pytest.raises(LockBusy, match="wait for itself"):
        app.lock("index").acquire()

    async def main() -> None:
        async with app.lock("index"):
            with pytest.raises(LockBusy, match="this same task"):
                await app.lock("index").aacquire()

    asyncio.run(main())


def test_a_lock_of_a_loop_callback_belongs_to_the_thread_and_not_to_a_task(app):
    answers = []

    def ask(seconds: float) -> None:
        try:
            answers.append(app.lock("index").acquire(timeout=seconds))
        except LockBusy as busy:
            answers.append(busy)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(ask, 20)
        loop.call_soon(ask, 20)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ask(0)

    asyncio.run(main())
    held, of_itself, of_the_task = answers
    held.release()

    assert "this same thread" in str(of_itself)
    assert "this same" not in str(of_the_task)


def test_a_thread_may_release_a_lock_that_another_thread_acquired(app):
    lock = app.lock("index")
    threads = [threading.Thread(target=lock.__enter__), threading.Thread(target=lock.__exit__)]
    for thread in threads:
        thread.start()
        thread.join()

    held = app.lock("index").acquire(timeout=0)
    assert held.is_held
    held.release()


def test_a_held_lock_has_only_the_documented_attributes(app):
    with app.lock("index") as held:
        shown = {name for name in dir(held) if not name.startswith("_")}

    assert shown == {"name", "fence", "lost", "is_held", "check", "release"}


def test_a_released_lock_is_forgotten(app):
    for _ in range(3):
        with app.lock("index"):
            pass
    asyncio.run(app.lock("index").aacquire()).release()
    gc.collect()

    assert [len(locks) for locks in app._holders._held.values()] == [0]

"""PostgreSQL only: the connections of a store's pool, and exceptions from outside that strike."""

import functools
import gc
import itertools
import threading
from contextlib import closing, suppress

import pytest

from duly.errors import StoreBusy, StoreError
from duly.store.postgres import pool
from duly.store.postgres.address import Address
from duly.store.postgres.pool import ConnectionPool
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import TIMEOUT
from tests.store.postgres.verbs import InBackground
from tests.strikes import Strike

FILES = ("store/postgres/pool.py", "duly/store/wake_lock.py")
SIZE = 2


@pytest.fixture
def sessions(url):
    with closing(ConnectionPool(Address(url), {}, size=SIZE, seconds=0.02)) as sessions:
        yield sessions


def read(sessions):
    """Use a session as a reader does."""
    with sessions.connection() as session:
        session.execute("SELECT 1")


def begin(sessions):
    """Use a session as a transaction does, which returns it by another call."""
    loan = sessions.try_acquire()
    if loan is not None:
        try:
            loan.session.execute("SELECT 1")
        finally:
            sessions.release(loan)


# A connection that a struck thread has lost is closed, with a warning, when Python frees it.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("use", [read, begin])
@pytest.mark.parametrize("is_full", [False, True], ids=["with room", "all lent"])
def test_a_thread_that_is_struck_at_any_instruction_keeps_no_session(sessions, use, is_full):
    for number in itertools.count():
        strike = Strike(number, *FILES, anywhere=True)
        lent = [sessions.acquire() for _ in range(SIZE if is_full else 0)]
        with suppress(StoreBusy):
            strike.call(functools.partial(use, sessions))
        for loan in lent:
            sessions.release(loan)
        if not strike.has_struck:
            break

        lent = [sessions.acquire() for _ in range(SIZE)]
        assert {loan.session.execute("SELECT 1").fetchone() for loan in lent} == {(1,)}
        assert sessions.try_acquire() is None
        for loan in lent:
            sessions.release(loan)
    del lent, strike
    gc.collect()  # The warnings are filtered here.
    assert number > 30


def test_the_pool_lends_no_more_sessions_at_once_than_its_size(url):
    with closing(ConnectionPool(Address(url), {}, size=SIZE, seconds=20.0)) as sessions:
        mutex, at_once, most = threading.Lock(), [0], [0]

        def use_often():
            for _ in range(50):
                with sessions.connection() as session:
                    with mutex:
                        at_once[0] += 1
                        most[0] = max(most[0], at_once[0])
                    session.execute("SELECT 1")
                    with mutex:
                        at_once[0] -= 1

        for thread in [InBackground(use_often) for _ in range(6)]:
            thread.answer()

        assert most[0] == SIZE


def test_a_thread_that_waits_for_a_session_gets_the_next_one_that_is_returned(url, monkeypatch):
    monkeypatch.setattr(pool, "_LOOK_SECONDS", 1000.0)  # Only a wake-up ends the wait.
    with closing(ConnectionPool(Address(url), {}, size=1, seconds=1000.0)) as sessions:
        first = sessions.acquire()
        waiting = [InBackground(functools.partial(read, sessions)) for _ in range(3)]
        wait_until(
            lambda: sum(loan().turn is not None for loan in list(sessions._line)) == 3,
            seconds=TIMEOUT,
            what="three threads wait",
        )
        sessions.release(first)

        for thread in waiting:
            thread.answer()


def test_a_session_that_is_returned_after_the_close_of_the_pool_is_closed(sessions):
    loan = sessions.acquire()
    sessions.close()

    sessions.release(loan)

    assert loan.session.closed
    with pytest.raises(StoreError, match="closed"):
        sessions.acquire()

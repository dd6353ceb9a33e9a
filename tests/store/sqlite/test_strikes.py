"""Exceptions thrown into a thread that writes must not leave the lock of the file taken."""

import fcntl
from contextlib import closing
from itertools import count

import pytest

from duly.store.sqlite import busy_timeout, connection, enqueue
from duly.store.sqlite import store as sqlite_store
from tests.store.conformance.verbs import order
from tests.store.sqlite.verbs import BOTH_JOURNALS
from tests.strikes import Strike

pytestmark = [pytest.mark.stores("sqlite"), BOTH_JOURNALS]

FILES = tuple(str(module.__file__) for module in (connection, enqueue, busy_timeout, sqlite_store))


@pytest.mark.parametrize("writes", [1, 2], ids=["one enqueue", "a transaction"])
def test_a_writer_that_is_struck_releases_the_lock_of_the_file(store, path, writes):
    with closing(path.with_name(path.name + "-duly.lock").open("r+b")) as other:
        for number in count(1):
            strike = Strike(number, *FILES)
            strike.call(lambda: store.apply([order() for _ in range(writes)]))
            if not strike.has_struck:
                break

            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(other, fcntl.LOCK_UN)
        assert number > 20
    store.do(order())

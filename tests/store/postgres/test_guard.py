"""Keys of the guard on PostgreSQL, where two transactions can take one key at the same time."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from duly.store.ops.guard import AcquireKey, FailKey, ForgetKey, Guarded
from duly.store.store_factory import open_store
from tests.store.conformance.verbs import SECOND
from tests.store.postgres.verbs import InBackground, wait_for_a_lock

GATE = 4711
SLOW = "slow"
_SLOW_INSERTS = f"""
CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF new.owner = '{SLOW}' THEN
        PERFORM pg_advisory_xact_lock({GATE});
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER gate BEFORE INSERT ON duly_guarded FOR EACH ROW EXECUTE FUNCTION wait_at_the_gate();
"""


def acquire(store: Any, owner: str) -> Guarded:
    return store.do(AcquireKey("invoice:42", owner, "a host", None, 30 * SECOND, None))


def fail(store: Any, owner: str, taken: Guarded) -> None:
    assert store.apply([FailKey("invoice:42", owner, taken.fence, None)]) == [True]


@contextmanager
def closed_gate(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Stop the slow owner's statement after it has its values, as preemption would."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(_SLOW_INSERTS)
        connection.execute(f"SELECT pg_advisory_lock({GATE})")
        yield connection


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["failed", "forgotten"])
def test_a_fence_grows_although_an_earlier_caller_gets_the_key_later(url, store, is_forgotten):
    if not is_forgotten:
        fail(store, "first", acquire(store, "first"))
    with closing(open_store(url)) as another, closed_gate(url) as gate:
        slow = InBackground(lambda: acquire(another, SLOW))
        wait_for_a_lock(url, what="the slow owner's insert")
        quick = acquire(store, "quick")
        fail(store, "quick", quick)
        if is_forgotten:
            store.do(ForgetKey("invoice:42"))

        gate.execute(f"SELECT pg_advisory_unlock({GATE})")
        late = slow.answer()

    assert quick.is_ours
    assert late.is_ours
    assert late.fence > quick.fence

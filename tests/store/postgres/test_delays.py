"""How long an open transaction with a keyed enqueue delays other callers: not at all.

In `make prove` the transaction is open for ten seconds and every verb has to take less than 50 ms.
Under the load of `make test` the times mean little. There, the test checks that no session ever
waited for a lock.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from duly.connections import execute_dialogue
from duly.store.ops.runs import Settled
from tests.integrations.evidence import SCALE, keep
from tests.store.conformance.verbs import claim, enqueue_one, order, succeed

SITS_SECONDS = 0.5 * SCALE
LIMIT_SECONDS = 0.05 if SCALE > 1 else 5.0
_WAITING = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@contextmanager
def counting_waits(url: str) -> Iterator[list[int]]:
    """Count repeatedly, during a block, how many sessions wait for a lock of another session."""
    seen: list[int] = []
    ended = threading.Event()

    def look() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not ended.wait(0.002):
                seen.append(connection.execute(_WAITING).fetchone()[0])

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()


@pytest.mark.scaled
def test_an_open_transaction_with_a_key_delays_no_verb(url, store, connection):
    took: dict[str, list[float]] = defaultdict(list)

    def timed(verb: str, act: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        begun = time.monotonic()
        answer = act(*arguments, **options)
        took[verb].append(time.monotonic() - begun)
        return answer

    theirs = order(key="theirs")
    assert execute_dialogue(
        connection, partial(store.enqueue_on_connection, theirs), store.wake
    ) == (
        theirs.run_id,
        True,
        False,
    )
    execute_dialogue(connection, partial(store.enqueue_on_connection, order()), store.wake)
    with counting_waits(url) as waits:
        until = time.monotonic() + SITS_SECONDS
        while time.monotonic() < until:
            timed("enqueue", enqueue_one, store)
            timed("enqueue with a key", enqueue_one, store, key=f"k{len(took['enqueue'])}")
            claims = timed("claim", claim, store)
            assert len(claims) == 2
            for each in claims:
                assert timed("settle", succeed, store, each) is Settled.DONE
    is_still_open = connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    connection.commit()

    longest = {verb: round(max(seconds), 4) for verb, seconds in took.items()}
    broken = [verb for verb, seconds in longest.items() if seconds > LIMIT_SECONDS]
    broken += ["a session waited for a lock"] * any(waits)
    document = {
        "measured": {
            "transaction_open_seconds": SITS_SECONDS,
            "longest_seconds": longest,
            "times": {verb: len(seconds) for verb, seconds in took.items()},
            "looks_for_a_lock_that_is_waited_for": len(waits),
        },
        "broken": broken,
    }
    version = connection.info.server_version // 10_000
    keep("open-transaction", f"postgres-{version}", document, "psycopg")
    assert is_still_open
    assert len(waits) > 10
    assert broken == [], document
    assert [each.run_id for each in claim(store)][:1] == [theirs.run_id]

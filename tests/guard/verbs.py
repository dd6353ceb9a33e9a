"""Ops that the tests of the guard on Redis apply to a ledger."""

from typing import Any

from duly.clock import MICROSECONDS
from duly.guard.redis import RedisLedger
from duly.store.ops.guard import AcquireKey, PutDeadLetter

LEASE = 30 * MICROSECONDS
TTL = 3600 * MICROSECONDS


def acquire(ledger: RedisLedger, owner: str = "a", key: str = "/k", ttl: int | None = TTL) -> Any:
    return ledger.do(AcquireKey(key, owner, "somebody", None, LEASE, ttl))


def put_dead_letter(letter_id: str, **changes: Any) -> PutDeadLetter:
    op = PutDeadLetter(
        letter_id, "celery", "shop.charge", "[]", None, "exhausted", "no", None, 1, None, None, TTL
    )
    return op._replace(**changes)

"""A ledger, a client and a guard on one empty Redis."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from duly.guard import Guard
from duly.guard.redis import RedisLedger


@pytest.fixture
def ledger(redis_url: str) -> Iterator[RedisLedger]:
    """A ledger in an empty Redis, which uses the clock of Redis."""
    with closing(RedisLedger(redis_url)) as ledger:
        yield ledger


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    """A client of that Redis."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def guard(redis_url: str) -> Iterator[Guard]:
    """A guard in an empty Redis."""
    with closing(Guard(redis_url)) as guard:
        yield guard

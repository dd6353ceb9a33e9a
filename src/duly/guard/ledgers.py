"""From an address to what keeps the keys."""

from importlib import util

from duly.errors import StoreRefused
from duly.store.opening import open_store
from duly.store.protocol import Ledger


def is_redis(url: str) -> bool:
    """Say whether an address is that of a Redis, which has keys and letters and no runs."""
    return url.partition("://")[0] in {"redis", "rediss", "unix"}


def open_ledger(url: str) -> Ledger:
    """Open the ledger at an address: a store, or a Redis."""
    if not is_redis(url):
        return open_store(url)
    if util.find_spec("redis") is None:
        raise StoreRefused("Redis needs redis-py; install it with: pip install 'duly[redis]'")
    from duly.guard.redis import RedisLedger  # noqa: PLC0415 - an optional extra

    return RedisLedger(url)

"""Opens the ledger for an address."""

from importlib import util
from typing import Literal

from duly.core.addresses import shown_scheme, without_driver
from duly.errors import StoreRefused
from duly.observe.logs import log_notice
from duly.store.protocol import Ledger
from duly.store.store_factory import STORES, open_store

OnEviction = Literal["warn", "refuse"]
"""The reaction to a Redis that evicts keys when its memory is full."""


def is_redis(url: str) -> bool:
    """Return whether an address is that of a Redis. It stores keys and dead letters but no runs."""
    return url.partition("://")[0] in {"redis", "rediss", "unix"}


def open_ledger(url: str, *, on_eviction: OnEviction = "warn") -> Ledger:
    """Open the ledger at an address: a store, or a Redis."""
    ledger = _open_redis(url, on_eviction) if is_redis(url) else _open_store(url)
    for notice in ledger.notices:
        log_notice(notice)
    return ledger


def _open_store(url: str) -> Ledger:
    if without_driver(url).partition("://")[0] not in STORES:
        raise StoreRefused(
            f"{shown_scheme(url)} is not a supported guard URL; use sqlite:///file.db, "
            "postgresql://user@host/database or redis://host:port/number"
        )
    return open_store(url)


def _open_redis(url: str, on_eviction: OnEviction) -> Ledger:
    if util.find_spec("redis") is None:
        raise StoreRefused("Redis needs redis-py; install it with: pip install 'duly[redis]'")
    from duly.guard.redis import RedisLedger  # noqa: PLC0415 - an optional extra

    return RedisLedger(url, on_eviction=on_eviction)

"""From an address to what keeps the keys."""

from duly.store.opening import open_store
from duly.store.protocol import Ledger

_REDIS = ("redis", "rediss", "unix")


def open_ledger(url: str) -> Ledger:
    """Open the ledger at an address: a store, or a Redis."""
    return open_store(url)

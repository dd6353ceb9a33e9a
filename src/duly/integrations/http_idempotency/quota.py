"""Limits how much of the ledger one caller may fill."""

from math import ceil

from duly.clock import MICROSECONDS, new_id, wall_seconds
from duly.guard import Guard
from duly.guard.keys import stored_key
from duly.integrations.http_idempotency.request import quota_key
from duly.limits import HTTP_KEPT_UNIT
from duly.store.ops.guard import AcquireKey


class Quota:
    """Counts the responses of each caller. A large response counts several times.

    The count is in the ledger, so all processes share it. It is the number of attempts of a key
    whose lease expires at once, so that the key can always be acquired again. A count restarts at 0
    every `ttl` seconds. Responses that were kept just before may still exist then.
    """

    def __init__(self, guard: Guard, *, limit: int, ttl: float | None) -> None:
        self._guard = guard
        self._limit = limit
        self._ttl = ttl

    def is_used_up(self, scope: str) -> bool:
        """Return whether a caller may keep no more responses for now."""
        found = self._guard.look(self._key(scope))
        return found is not None and found.attempts >= self._limit

    def charge(self, scope: str, size: int) -> None:
        """Count a response of `size` bytes."""
        place = stored_key(self._guard.namespace, self._key(scope))
        kept = None if self._ttl is None else round(self._ttl * MICROSECONDS)
        ops = [
            AcquireKey(place, new_id(), "quota", fingerprint=None, lease=0, ttl=kept)
            for _ in range(1 + size // HTTP_KEPT_UNIT)
        ]
        self._guard.call_ledger(lambda ledger: ledger.apply(ops))

    @property
    def seconds_left(self) -> int | None:
        """The seconds until the counts restart. None means never."""
        return None if self._ttl is None else ceil(self._ttl - wall_seconds() % self._ttl)

    def _key(self, scope: str) -> str:
        window = 0 if self._ttl is None else int(wall_seconds() // self._ttl)
        return quota_key(scope, window)

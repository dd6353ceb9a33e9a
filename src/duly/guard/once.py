"""Entering a key: as its first caller, or after it is done."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from duly.apart import apart
from duly.clock import MICROSECONDS, jitter, monotonic, new_id
from duly.errors import Busy, ClaimLost, KeyConflict, StoreError
from duly.guard.claim import GuardClaim
from duly.store.guard_ops import Guarded

_SHORTEST_PAUSE = 0.01
_LONGEST_PAUSE = 0.5


class Once:
    """What `guard.once` returns: `with` it, or `async with` it."""

    def __init__(
        self, key: str, attempt: Callable[[str], GuardClaim | Guarded], wait: float
    ) -> None:
        """Name it; `attempt` tries to take it for an owner, again and again for `wait` seconds."""
        self._key = key
        self._attempt = attempt
        self._wait = wait
        self._claims: list[GuardClaim] = []

    def __enter__(self) -> GuardClaim:
        owner, until, pause = new_id(), monotonic() + self._wait, _SHORTEST_PAUSE
        while not isinstance(found := self._attempt(owner), GuardClaim):
            pause = self._pause(pause, until, found)
            time.sleep(pause)
        self._claims.append(found)
        return found

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        _leave(self._claims.pop(), error)

    async def __aenter__(self) -> GuardClaim:
        owner, until, pause = new_id(), monotonic() + self._wait, _SHORTEST_PAUSE
        while not isinstance(
            found := await apart(lambda: self._attempt(owner), undo=_give_back), GuardClaim
        ):
            pause = self._pause(pause, until, found)
            await asyncio.sleep(pause)
        self._claims.append(found)
        return found

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        claim = self._claims.pop()
        if claim.is_open:
            await apart(lambda: _leave(claim, error))

    def _pause(self, pause: float, until: float, found: Guarded) -> float:
        """Return how long to wait before the next try, or say that there is no use or no time."""
        if found.conflict:
            raise KeyConflict(self._key)
        left = until - monotonic()
        if left <= 0:
            raise Busy(self._key, found.holder, found.left / MICROSECONDS)
        grown = min(2 * pause, _LONGEST_PAUSE) * (0.5 + jitter() / 2)
        return min(left, max(grown, _SHORTEST_PAUSE))


def _leave(claim: GuardClaim, error: BaseException | None) -> None:
    """Say how a body ended that has not said so itself."""
    if not claim.is_open:
        return
    if error is None:
        claim.done()
        return
    # The body's own error is what counts; a key that cannot be let go is free with its lease.
    with suppress(StoreError, ClaimLost):
        claim.fail()


def _give_back(tried: GuardClaim | Guarded) -> None:
    if isinstance(tried, GuardClaim) and tried.is_open:
        tried.fail()

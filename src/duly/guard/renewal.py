"""Renews the leases of all keys that one guard holds, on one thread."""

import threading
from collections.abc import Callable, Mapping

from duly.clock import MICROSECONDS
from duly.guard.claim import KeyLease
from duly.heartbeat import HeartbeatThread
from duly.store.ops.guard import RenewKey
from duly.store.protocol import Ledger


class KeyRenewer:
    """Renews leases until it is closed. Its thread starts with the first key."""

    def __init__(self, ledger: Ledger, *, lease: float, margin: float) -> None:
        self._ledger = ledger
        self._lease = round(lease * MICROSECONDS)
        self._key_leases: dict[str, KeyLease] = {}
        self._turn = threading.Lock()
        self._is_beating = False
        self._keepalive = HeartbeatThread(
            self, self._members, self._disowned, lease=lease, beat=lease / 3, margin=margin
        )

    def add(self, hold: KeyLease) -> None:
        """Start renewing a key."""
        with self._turn:
            self._key_leases[hold.owner] = hold
            if not self._is_beating:
                self._is_beating = True
                self._keepalive.start()

    def drop(self, hold: KeyLease) -> None:
        """Stop renewing a key."""
        with self._turn:
            self._key_leases.pop(hold.owner, None)

    def beat(self, worker_ids: list[str]) -> set[str]:
        """Renew all keys. Return the owners that still hold theirs."""
        with self._turn:
            known = map(self._key_leases.get, worker_ids)
            holds = [hold for hold in known if hold is not None]
        if not holds:
            return set(worker_ids)
        answers = self._ledger.apply(
            [RenewKey(hold.key, hold.owner, hold.fence, self._lease) for hold in holds]
        )
        gone = set(worker_ids) - {hold.owner for hold in holds}
        return gone | {hold.owner for hold, is_ours in zip(holds, answers, strict=True) if is_ours}

    def close(self) -> None:
        """End the thread."""
        with self._turn:
            is_beating, self._is_beating = self._is_beating, False
        if is_beating:
            self._keepalive.stop()

    def _members(self) -> Mapping[str, Callable[[float], None]]:
        with self._turn:
            return {owner: hold.extend for owner, hold in self._key_leases.items()}

    def _disowned(self, owner: str) -> None:
        with self._turn:
            hold = self._key_leases.pop(owner, None)
        if hold is not None:
            hold.lost.set()

"""Refuses a call while an equal one is queued, as celery-once and celery-singleton do."""

from collections.abc import Mapping
from typing import Any

from duly.actor import resolve_actor
from duly.clock import MICROSECONDS
from duly.errors import BadOption, DulyError
from duly.guard import Guard
from duly.guard.keys import stored_key
from duly.store.ops.guard import AcquireKey, FailKey, Guarded

_CELERY_ONCE_OPTIONS = {"keys": "keys", "graceful": "graceful", "timeout": "lock_expiry"}


def options_from_celery_once(once: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task options for celery-once's `once={…}`. Raise BadOption for unknown options."""
    found = dict(once) if isinstance(once, Mapping) else {"": once}
    if found.pop("unlock_before_run", False):
        raise BadOption(
            'once={"unlock_before_run": True} is not supported: omit once; equal calls may then be '
            "sent at any time, and get the result of the first"
        )
    unknown = found.keys() - _CELERY_ONCE_OPTIONS.keys()
    if unknown:
        raise BadOption(
            f"once must be a mapping with {', '.join(_CELERY_ONCE_OPTIONS)}, not {once!r}"
        )
    options = {_CELERY_ONCE_OPTIONS[name]: value for name, value in found.items()}
    return options | {"raise_on_duplicate": True}


class AlreadyQueued(DulyError):
    """An equal call is queued or running."""

    def __init__(self, task: str, countdown: float) -> None:
        super().__init__(
            f"an equal call of {task} is queued or running, so this call was not sent. Send it "
            f"again after the other call has ended, or in {countdown:.1f} s"
        )
        self.countdown = countdown
        """Seconds until the other call is no longer assumed to be queued."""


class Reservation:
    """Reserves the key of one call while it is queued. A reservation ends when its call starts."""

    def __init__(self, guard: Guard, key: str, task_id: str, *, expiry: float) -> None:
        self._guard = guard
        self._op = AcquireKey(
            key=stored_key(guard.namespace, f"queued:{key}"),
            owner=task_id,
            holder=resolve_actor(None),
            fingerprint=None,
            lease=round(expiry * MICROSECONDS),
            ttl=round(expiry * MICROSECONDS),
        )

    def acquire(self) -> float | None:
        """Reserve the key. Return None on success, or the seconds for which another call holds it.

        It also succeeds if the same task id already holds the reservation, as after a retry.
        """
        found = self._ask()
        return None if found.is_ours else found.left / MICROSECONDS

    def release(self) -> None:
        """Allow equal calls to be queued again."""
        found = self._ask()
        if found.is_ours:
            op = FailKey(self._op.key, self._op.owner, found.fence, self._op.ttl)
            self._guard.call_ledger(lambda ledger: ledger.do(op))

    def _ask(self) -> Guarded:
        answer: Any
        answer = self._guard.call_ledger(lambda ledger: ledger.do(self._op))
        found: Guarded = answer
        return found

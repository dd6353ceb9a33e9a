"""Waits for a lock and enters it."""

import asyncio
import enum
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from duly.actor import actor_of
from duly.app_protocol import AppProtocol
from duly.async_threads import run_in_thread
from duly.clock import FIRST_PAUSE, MICROSECONDS, longer_pause, monotonic, new_id
from duly.core.key import check_name
from duly.errors import BadOption, LockBusy
from duly.interrupts import defer_interrupts
from duly.limits import LOCK_SECONDS
from duly.locks.held_lock import HeldLock
from duly.locks.ownership import Ownership, acquire_ownership
from duly.store.ops.locks import Locked

_LONGEST_PAUSE = 0.25


class _DefaultTimeout(enum.Enum):
    """Marks a timeout that was not passed, since None means no timeout."""

    OWN = enum.auto()


_OWN: Final = _DefaultTimeout.OWN

Caller = asyncio.Task[object] | threading.Thread


class LockHolders:
    """Which callers in this process hold which locks. It keeps neither of them alive."""

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[Caller, WeakSet[HeldLock]] = WeakKeyDictionary()

    def note(self, held: HeldLock, caller: Caller) -> None:
        """Record which caller took a lock."""
        self._held.setdefault(caller, WeakSet()).add(held)

    def has(self, name: str, caller: Caller) -> bool:
        """Return whether this caller holds a lock."""
        return any(held.name == name and held.is_held for held in self._held.get(caller, ()))


class Lock:
    """A named lock, for `with` or `acquire`."""

    def __init__(
        self,
        host: AppProtocol,
        name: str,
        *,
        holders: LockHolders,
        ttl: float | timedelta = 30,
        timeout: float | None = None,
        on_lost: Callable[[HeldLock], None] | None = None,
    ) -> None:
        """Set up the lock.

        `timeout` is how long to wait for it: None is forever, 0 is not at all.
        """
        self._app = host
        self._holders = holders
        self.name = check_name("lock", name)
        self._ttl = _seconds(ttl)
        self._timeout = timeout
        self._on_lost = on_lost
        self._entered: list[tuple[Caller, HeldLock]] = []
        """The held locks that the active `with` statements must release."""

    def try_acquire(self) -> HeldLock | None:
        """Take the lock if it is free."""
        found = self._try(new_id(), _caller())
        return found if isinstance(found, HeldLock) else None

    def acquire(self, timeout: float | _DefaultTimeout | None = _OWN) -> HeldLock:
        """Take the lock. Wait up to `timeout` seconds, then raise LockBusy."""
        owner, caller, until = new_id(), _caller(), self._deadline(timeout)
        pause = FIRST_PAUSE
        while isinstance(found := self._try(owner, caller), Locked):
            pause = self._pause(pause, until, found, caller)
            time.sleep(pause)
        return found

    async def aacquire(
        self,
        timeout: float | _DefaultTimeout | None = _OWN,  # noqa: ASYNC109 - the lock's own
    ) -> HeldLock:
        """Take the lock without blocking the event loop."""
        owner, caller, until = new_id(), _caller(), self._deadline(timeout)
        pause = FIRST_PAUSE
        while isinstance(
            found := await run_in_thread(lambda: self._try(owner, caller), undo=_release_lock),
            Locked,
        ):
            pause = self._pause(pause, until, found, caller)
            await asyncio.sleep(pause)
        return found

    def __enter__(self) -> HeldLock:
        held = self.acquire()
        self._entered.append((_caller(), held))
        return held

    def __exit__(self, *_: object) -> None:
        self._leave().release()

    async def __aenter__(self) -> HeldLock:
        held = await self.aacquire()
        self._entered.append((_caller(), held))
        return held

    async def __aexit__(self, *_: object) -> None:
        await run_in_thread(self._leave().release)

    def _leave(self) -> HeldLock:
        """Return the lock that this caller, or else any caller, entered last.

        The two halves of a fixture or of a dependency with `yield` may run in two threads or tasks.
        """
        caller = _caller()
        own = [entry for entry in self._entered if entry[0] is caller]
        entry = own[-1] if own else self._entered[-1]
        self._entered.remove(entry)
        return entry[1]

    def _try(self, owner: str, caller: Caller) -> HeldLock | Locked:
        store, holder = self._app.store, actor_of(self._app.settings.actor)
        # Without this, a timeout could leave a lock that no code knows about and that is renewed
        # forever.
        with defer_interrupts():
            sent_at = monotonic()
            taken = acquire_ownership(store, self.name, owner, holder=holder, ttl=self._ttl)
            if not isinstance(taken, Ownership):
                return taken
            held = HeldLock(taken, sent_at, self._on_lost)
            self._holders.note(held, caller)
            return held

    def _deadline(self, timeout: float | _DefaultTimeout | None) -> float:
        seconds = self._timeout if isinstance(timeout, _DefaultTimeout) else timeout
        return float("inf") if seconds is None else monotonic() + seconds

    def _pause(self, pause: float, until: float, found: Locked, caller: Caller) -> float:
        """Return how long to wait before the next try.

        Raise if waiting is useless or time is up.
        """
        if self._holders.has(self.name, caller):
            kind = "thread" if isinstance(caller, threading.Thread) else "task"
            raise LockBusy(self.name, f"this same {kind}, which would wait for itself", None)
        left = until - monotonic()
        if left <= 0:
            raise LockBusy(self.name, found.holder, found.left / MICROSECONDS)
        # If the holder has died, the lock is free when its time is over, and not before.
        return longer_pause(pause, longest=_LONGEST_PAUSE, left=left)


def _release_lock(tried: HeldLock | Locked) -> None:
    if isinstance(tried, HeldLock):
        tried.release()


def _caller() -> Caller:
    """Return the caller: an asyncio task, or else a thread, as in a callback of the event loop."""
    with suppress(RuntimeError):
        task = asyncio.current_task()
        if task is not None:
            return task
    return threading.current_thread()


def _seconds(ttl: float | timedelta) -> float:
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if not isinstance(seconds, int | float) or not 1 <= seconds <= LOCK_SECONDS:
        raise BadOption(
            f"the ttl of a lock must be from 1 second to {LOCK_SECONDS}, not {ttl!r}; duly renews "
            "the lock while it is held, so a short ttl is enough"
        )
    return float(seconds)

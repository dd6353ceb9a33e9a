"""`app.lock`: a named lock that one process at a time holds, on any host.

A lock has an owner and a fence. It is renewed in the background while it is held, changes hands
only when it was released or its time is over by the store's clock, and only its owner renews or
releases it. Whoever is frozen past that time has lost it, and is told so; what it protects should
check the fence, which only grows.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from duly.actor import acting
from duly.clock import MICROSECONDS, jitter, monotonic, new_id
from duly.core.key import check_name
from duly.errors import BadOption, LockBusy, LockLost, StoreError
from duly.host import Host
from duly.keepalive import Keepalive
from duly.limits import LOCK_SECONDS
from duly.store.ops import AcquireLock, Locked, ReleaseLock, RenewLock
from duly.store.protocol import Store

T = TypeVar("T")

_OWN = -1.0
"""The timeout that the lock was made with."""
_SHORTEST_PAUSE = 0.01
_LONGEST_PAUSE = 0.25


_in_hand: dict[tuple[Store, str], object] = {}
"""Who in this process holds a lock, by store and name: a thread or a task."""


class Lock:
    """A named lock; `with` it, or `acquire` it."""

    def __init__(
        self,
        host: Host,
        name: str,
        *,
        ttl: float | timedelta = 30,
        timeout: float | None = None,
        on_lost: Callable[["HeldLock"], None] | None = None,
    ) -> None:
        """Name it. `timeout` bounds how long entering waits: None is for ever, 0 not at all."""
        self._host = host
        self.name = check_name("lock", name)
        self._ttl = _seconds(ttl)
        self._timeout = timeout
        self._on_lost = on_lost
        self._held: dict[object, HeldLock] = {}
        """By the thread or the task that entered."""

    def try_acquire(self) -> "HeldLock | None":
        """Take the lock if it is free."""
        return self._try(new_id())[0]

    def acquire(self, timeout: float | None = _OWN) -> "HeldLock":
        """Take the lock, waiting for it up to `timeout` seconds; LockBusy if that was in vain."""
        owner, until = new_id(), self._deadline(timeout)
        pause = _SHORTEST_PAUSE
        while True:
            held, found = self._try(owner)
            if held is not None:
                return self._note(held)
            pause = self._pause(pause, until, found)
            time.sleep(pause)

    async def aacquire(self, timeout: float | None = _OWN) -> "HeldLock":  # noqa: ASYNC109 - ours
        """Take the lock without blocking the event loop."""
        owner, until = new_id(), self._deadline(timeout)
        pause = _SHORTEST_PAUSE
        while True:
            held, found = await _apart(lambda: self._try(owner), undo=self._give_back)
            if held is not None:
                return self._note(held)
            pause = self._pause(pause, until, found)
            await asyncio.sleep(pause)

    def __enter__(self) -> "HeldLock":
        held = self._held[_self()] = self.acquire()
        return held

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held.pop(_self()).release()

    async def __aenter__(self) -> "HeldLock":
        held = self._held[_self()] = await self.aacquire()
        return held

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        held = self._held.pop(_self())
        await _apart(held.release)

    def _try(self, owner: str) -> "tuple[HeldLock | None, Locked]":
        sent_at = monotonic()
        ttl = round(self._ttl * MICROSECONDS)
        (found,) = self._host.store.apply([AcquireLock(self.name, owner, acting(None), ttl)])
        if not found.is_ours:
            return None, found
        held = HeldLock(self._host, self.name, owner, found.fence, self._ttl, self._on_lost)
        held.begin(sent_at)
        return held, found

    def _note(self, held: "HeldLock") -> "HeldLock":
        _in_hand[self._host.store, self.name] = _self()
        return held

    def _deadline(self, timeout: float | None) -> float:
        seconds = self._timeout if timeout == _OWN else timeout
        return float("inf") if seconds is None else monotonic() + seconds

    def _pause(self, pause: float, until: float, found: Locked) -> float:
        """Return how long to wait before the next try, or say that time is up."""
        left = until - monotonic()
        if _in_hand.get((self._host.store, self.name)) == _self():
            raise LockBusy(
                self.name,
                "this very thread, which would wait for itself",
                found.left / MICROSECONDS,
            )
        if left <= 0:
            raise LockBusy(self.name, found.holder, found.left / MICROSECONDS)
        # Whoever holds it may be gone: then it is free when its time is over, and not before.
        grown = min(2 * pause, _LONGEST_PAUSE) * (0.5 + jitter() / 2)
        return min(left, max(grown, _SHORTEST_PAUSE))

    @staticmethod
    def _give_back(tried: "tuple[HeldLock | None, Locked]") -> None:
        held, _ = tried
        if held is not None:
            held.release()


class HeldLock:
    """A lock in hand."""

    def __init__(
        self,
        host: Host,
        name: str,
        owner: str,
        fence: int,
        ttl: float,
        on_lost: Callable[["HeldLock"], None] | None,
    ) -> None:
        # This very store: one that the application has closed must not be opened again by us.
        self._store = host.store
        self._pid = os.getpid()
        self.name = name
        self.fence = fence
        """A number that only grows: a store that refuses smaller ones is safe from late holders."""
        self.lost = threading.Event()
        """Set when the lock could not be renewed in time."""
        self._owner = owner
        self._ttl = ttl
        self._on_lost = on_lost
        self._deadline = 0.0
        self._released = False
        margin = ttl / 6
        self._keepalive = Keepalive(
            self,
            lambda: {owner: self._renewed},
            lambda _: self._lose(),
            lease=ttl,
            beat=ttl / 3,
            margin=margin,
        )

    def begin(self, sent_at: float) -> None:
        """Keep it: it was taken when this was sent."""
        self._deadline = sent_at + self._ttl * 5 / 6
        self._keepalive.start(after=self._ttl / 3)

    @property
    def is_held(self) -> bool:
        """Whether nobody else can hold it, as far as can be known here."""
        return not self._released and not self.lost.is_set() and monotonic() < self._deadline

    def check(self) -> None:
        """Raise LockLost unless the lock is surely held."""
        if not self.is_held:
            raise LockLost(self.name, self.fence)

    def release(self) -> bool:
        """Let go; say whether it was still ours."""
        # What a parent holds is not a forked child's to release.
        if self._released or self._pid != os.getpid():
            return False
        self._released = True
        _in_hand.pop((self._store, self.name), None)
        self._keepalive.stop()
        op = ReleaseLock(self.name, self._owner, self.fence)
        (was_ours,) = self._store.apply([op])
        return bool(was_ours)

    def __repr__(self) -> str:
        return f"<lock {self.name!r}, fence {self.fence}, {'held' if self.is_held else 'not held'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    # -- what the keepalive asks for --

    def beat(self, worker_ids: list[str]) -> set[str]:
        """Renew; return the owner if it still is that."""
        ttl = round(self._ttl * MICROSECONDS)
        try:
            (is_ours,) = self._store.apply([RenewLock(self.name, self._owner, self.fence, ttl)])
        except (StoreError, OSError):
            if monotonic() >= self._deadline:
                self._lose()
            raise
        return set(worker_ids) if is_ours else set()

    def _renewed(self, deadline: float) -> None:
        self._deadline = deadline

    def _lose(self) -> None:
        if self._released or self.lost.is_set():
            return
        self.lost.set()
        _in_hand.pop((self._store, self.name), None)
        self._keepalive.stop()
        if self._on_lost is not None:
            self._on_lost(self)


def _self() -> object:
    """Return who is calling: a task, or else a thread."""
    with suppress(RuntimeError):
        return asyncio.current_task()
    return threading.get_ident()


async def _apart(act: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
    """Do something in a thread of its own, to its end whatever becomes of us.

    If we are cancelled meanwhile, what was done is undone there. The loop's own threads may all be
    busy, or end with it.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    mutex = threading.Lock()
    done: list[T] = []
    abandoned = False

    def work() -> None:
        try:
            result = act()
        except Exception as error:  # noqa: BLE001 - handed to who waits for it
            tell(answer.set_exception, error)
            return
        with mutex:
            is_awaited = not abandoned
            if is_awaited:
                done.append(result)
        if is_awaited:
            tell(answer.set_result, result)
        elif undo is not None:
            undo(result)

    def tell(settle: Callable[[Any], None], news: object) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settle, news)

    threading.Thread(target=work, name="duly-lock", daemon=True).start()
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        with mutex:
            abandoned = True
            left = tuple(done)
        if left and undo is not None:
            threading.Thread(target=undo, args=left, name="duly-lock", daemon=True).start()
        raise


def _seconds(ttl: float | timedelta) -> float:
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if not isinstance(seconds, int | float) or not 1 <= seconds <= LOCK_SECONDS:
        raise BadOption(
            f"the ttl of a lock must be from 1 second to {LOCK_SECONDS}, not {ttl!r}; it is "
            f"renewed while it is held, so it need not be long"
        )
    return float(seconds)

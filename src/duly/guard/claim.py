"""A key in hand: held while its body runs, then done or failed; or somebody else's, and done."""

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, Self
from weakref import ref

from duly.async_threads import run_in_thread
from duly.clock import MICROSECONDS, monotonic
from duly.core.payload import decode_value, encode_value
from duly.errors import OUTAGES, ClaimLost, DulyError, PayloadError, WouldBlockItself
from duly.guard.threads import HelperJob, HelperThreads
from duly.store.guard_ops import FailKey, FinishKey, Guarded
from duly.store.protocol import Ledger

_RETRY_SECONDS = 0.25


class ResultCodec(Protocol):
    """Turns results into stored text and back."""

    def encode_result(self, value: object) -> str | None: ...
    def decode_result(self, text: str | None) -> Any: ...  # noqa: ANN401 - any result


class PlainResultCodec:
    """Results of a body that has no annotation."""

    def encode_result(self, value: object) -> str | None:
        """Return the text to store for a result, or None for None."""
        return None if value is None else encode_value(value)

    def decode_result(self, text: str | None) -> Any:  # noqa: ANN401 - any result
        """Return the result that was stored."""
        return None if text is None else decode_value(text)


def check_is_result(result: object) -> None:
    """Refuse what may only have begun: were that a body's end, nobody would ever go on with it.

    An awaitable that has ended is refused, too: only what it came to can be kept.
    """
    is_generator = inspect.isgenerator(result) or inspect.isasyncgen(result)
    if not is_generator and not inspect.isawaitable(result):
        return
    if inspect.iscoroutine(result):
        result.close()  # Or Python says that nobody has awaited it, which is told below.
    raise PayloadError(
        "result",
        f"is of type {type(result).__name__}: the function may not have finished; return its final "
        "value, or make the guarded function async def",
    )


class GuardClaim:
    """What `guard.once` found: the right to run the body, or the result of who has run it."""

    def __init__(
        self,
        key: str,
        found: Guarded,
        *,
        results: ResultCodec,
        hold: "KeyLease | None" = None,
        clerk: HelperThreads | None = None,
    ) -> None:
        """Tell of a key; who is to run the body has its hold, and a clerk to say how it ended."""
        self.key = key
        self.first = hold is not None
        """Whether this caller is to run the body."""
        self.fence = found.fence
        """A number that only grows: a store that refuses smaller ones is safe from late holders."""
        self.attempts = found.attempts
        """How many have begun the body since the key was new, this one included."""
        self.losses = found.losses
        """How many of those before, in a row, ended without a word."""
        self._found = found
        self._results = results
        self._lease = hold
        self._threads = clerk
        self._is_ending = False
        """Whether a coroutine has begun to say how the body ended."""

    @property
    def result(self) -> Any:  # noqa: ANN401 - any result
        """What the body returned, or what `done` was given."""
        if self._lease is not None:
            return self._lease.result
        if self._found.problem is not None:
            raise PayloadError(
                "result", f"the returned value was not stored: {self._found.problem}"
            )
        return self._results.decode_result(self._found.result)

    @property
    def is_held(self) -> bool:
        """Whether nobody else can be running the body, as far as can be known here."""
        return self._lease is not None and self._lease.is_held

    @property
    def is_open(self) -> bool:
        """Whether it is still to be said how the body ended."""
        return self._lease is not None and not (self._lease.has_ended or self._is_ending)

    @property
    def is_done(self) -> bool:
        """Whether it is on record that the body is done."""
        return self._found.state == "done" if self._lease is None else self._lease.is_done

    def check(self) -> None:
        """Raise ClaimLost unless the key is surely held."""
        if not self.is_held:
            raise self._lost()

    def done(self, result: object = None) -> None:
        """Record that the body is done, and what it came to; durable on return.

        A result that cannot be stored does not undo what the body did: the key is done without it,
        and those who ask for it later are told why it is missing. An exception that is thrown into
        this thread meanwhile comes out when it is recorded. A generator and everything that can be
        awaited, a future that has ended too, is refused: a body that returns one may have only
        begun.
        """
        check_is_result(result)
        self._record_end(lambda: self._finish(self._begin_end(), result))

    async def adone(self, result: object = None) -> None:
        """As `done`, without blocking the event loop."""
        check_is_result(result)
        await self._arecord_end(lambda: self._finish(self._begin_end(), result))

    def fail(self, *, began: bool = True, forget: bool = False) -> None:
        """Let go of the key: the body failed, or was not begun, and may be tried again.

        With `forget` the ledger keeps nothing: the key is as new, also for another payload.
        """
        self._record_end(lambda: self._fail(self._begin_end(), began=began, forget=forget))

    async def afail(self, *, began: bool = True, forget: bool = False) -> None:
        """As `fail`, without blocking the event loop."""
        await self._arecord_end(lambda: self._fail(self._begin_end(), began=began, forget=forget))

    def __repr__(self) -> str:
        what = "first" if self.first else self._found.state
        return f"<claim of {self.key!r}, {what}, fence {self.fence}>"

    def _record_end(self, how: Callable[[], None]) -> None:
        """Say how the body ended, where nothing strikes."""
        if self._threads is None:
            how()
        else:
            self._threads.run(how)

    async def _arecord_end(self, how: Callable[[], None]) -> None:
        """Say it without blocking the event loop; it is said even if its caller is struck."""
        errand = HelperJob(how)
        # Whoever is cancelled while this goes on must not take it for a body that failed. Nothing
        # strikes between this and the block.
        self._is_ending = True
        try:
            await run_in_thread(errand.run)
        except asyncio.CancelledError:
            raise
        except BaseException:
            if self._threads is not None and not errand.has_ended:
                self._threads.ensure_done(errand)
            raise
        errand.result()

    def _begin_end(self) -> "KeyLease":
        """Return the hold, of which how it ends is said once: now."""
        if self._lease is None or not self._lease.begin_end():
            what = (
                "this claim has already ended"
                if self.first
                else "this caller does not hold the key"
            )
            raise RuntimeError(f"the claim of key {self.key!r} cannot be ended: {what}")
        return self._lease

    def _finish(self, hold: "KeyLease", result: object) -> None:
        hold.result = result
        text, problem = None, None
        try:
            text = self._results.encode_result(result)
        except PayloadError as error:
            problem = str(error)
        if not hold.finish(text, problem):
            raise self._lost()

    def _fail(self, hold: "KeyLease", *, began: bool, forget: bool) -> None:
        if not hold.fail(began=began, forget=forget):
            raise self._lost()

    def _lost(self) -> ClaimLost:
        return ClaimLost(f"key {self.key!r}", self.fence)


class KeyLease:
    """The holder's side of a key: its lease, and how it ends."""

    def __init__(
        self,
        ledger: Callable[[], Ledger],
        *,
        key: str,
        owner: str,
        fence: int,
        ttl: float | None,
        deadline: float,
        patience: float,
        ended: Callable[["KeyLease"], None],
    ) -> None:
        """Hold a key until `deadline`, or later if that is moved.

        `patience` is for how many seconds to try to say how the body ended.
        """
        self.key = key
        self.owner = owner
        self.fence = fence
        self.result: object = None
        self.is_done = False
        self.lost = threading.Event()
        self.finalizer: ClaimFinalizer | None = None
        """On the claim of whoever has it."""
        self._ending = threading.Lock()
        self._ledger = ledger
        self._ttl = None if ttl is None else round(ttl * MICROSECONDS)
        self._deadline = deadline
        self._patience = patience
        self._ended = ended
        self._pid = os.getpid()

    @property
    def has_ended(self) -> bool:
        """Whether it was said how the body ended, or is being said."""
        return self._ending.locked()

    def begin_end(self) -> bool:
        """Begin to say how the body ended; say whether nobody has."""
        return self._ending.acquire(blocking=False)

    @property
    def is_held(self) -> bool:
        """Whether nobody else can hold it, as far as can be known here."""
        is_ours = not self.has_ended and not self.lost.is_set() and self._pid == os.getpid()
        return is_ours and monotonic() < self._deadline

    def extend(self, deadline: float) -> None:
        """Take note of a new end of the lease."""
        self._deadline = deadline

    def finish(self, result: str | None, problem: str | None) -> bool:
        """Record that the body is done, however long that takes while the lease lasts.

        It has had its effect: were this given up at once, it would run again.
        """
        op = FinishKey(self.key, self.owner, self.fence, self._ttl, result, problem)
        self.is_done = self._end(op, self._patience)
        return self.is_done

    def fail(self, *, began: bool = True, forget: bool = False) -> bool:
        """Record that the body failed; where that cannot be said, the lease's end says it."""
        ttl = 0 if forget else self._ttl
        return self._end(FailKey(self.key, self.owner, self.fence, ttl, began), 0.0)

    def abandon(self, ledger: Ledger) -> None:
        """Record that nobody is left to say how the body ended, in a ledger that may be closed."""
        self._ledger = lambda: ledger
        self.fail()

    def _end(self, op: FinishKey | FailKey, patience: float) -> bool:
        if self._pid != os.getpid():
            return False
        until = monotonic() + patience
        try:
            while True:
                try:
                    (was_ours,) = self._ledger().apply([op])
                except WouldBlockItself:
                    raise  # It is the caller who is in the way, for as long as it waits for us.
                except OUTAGES:
                    if monotonic() >= until:
                        raise
                    time.sleep(_RETRY_SECONDS)
                else:
                    return bool(was_ours)
        finally:
            self.finalizer = None
            self._ended(self)


class ClaimFinalizer(ref[GuardClaim]):
    """Lets go of a key when nobody has its claim any more.

    Whoever was to say how the body ended was struck before it could. When the claim goes, this is
    put into the clerk's inbox, which no instruction of Python's is part of either.
    """

    __slots__ = ("_hold", "_ledger")
    _hold: KeyLease
    _ledger: Ledger

    def __new__(
        cls, claim: GuardClaim, hold: KeyLease, clerk: HelperThreads, ledger: Ledger
    ) -> Self:
        """Tie a hold to the claim of whoever has it, in the ledger that the key was taken in."""
        tie = super().__new__(cls, claim, clerk.inbox.put)
        tie._hold = hold
        tie._ledger = ledger
        return tie

    def __init__(self, *_what: object) -> None: ...

    def run(self) -> None:
        """Let go of the key."""
        if self._hold.begin_end():
            # Nobody is left to be told; what cannot be said now is over with its lease. A guard
            # that was closed meanwhile is not opened again: nobody would close it.
            with suppress(DulyError, OSError):
                self._hold.abandon(self._ledger)

"""A claim of a key: held while the body runs, then done or failed; or another caller's result."""

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
from duly.store.ops.guard import FailKey, FinishKey, Guarded
from duly.store.protocol import Ledger

_RETRY_SECONDS = 0.25


class ResultCodec(Protocol):
    """Converts results to stored text and back."""

    def encode_result(self, value: object) -> str | None: ...
    def decode_result(self, text: str | None) -> Any: ...  # noqa: ANN401 - any result


class PlainResultCodec:
    """The codec for results of a body without annotations."""

    def encode_result(self, value: object) -> str | None:
        """Return the text to store for a result, or None for None."""
        return None if value is None else encode_value(value)

    def decode_result(self, text: str | None) -> Any:  # noqa: ANN401 - any result
        """Return the result of a stored text."""
        return None if text is None else decode_value(text)


def check_is_result(result: object) -> None:
    """Refuse a result that may only have started, such as a coroutine: no caller would continue it.

    An awaitable that has ended is refused, too. Only its result can be stored.
    """
    is_generator = inspect.isgenerator(result) or inspect.isasyncgen(result)
    if not is_generator and not inspect.isawaitable(result):
        return
    if inspect.iscoroutine(result):
        result.close()  # Without it, Python warns that no code awaited it.
    raise PayloadError(
        "result",
        f"is of type {type(result).__name__}: the function may not have finished; return its final "
        "value, or make the guarded function async def",
    )


class GuardClaim:
    """The result of `guard.once`: the right to run the body, or the result of an earlier call."""

    def __init__(
        self,
        key: str,
        found: Guarded,
        *,
        results: ResultCodec,
        hold: "KeyLease | None" = None,
        threads: HelperThreads | None = None,
    ) -> None:
        """Build a claim. The caller that must run the body gets its `hold` and helper threads."""
        self.key = key
        self.first = hold is not None
        """True if this caller must run the body."""
        self.fence = found.fence
        """A number that grows with every holder. Pass it to stores that refuse smaller numbers."""
        self.attempts = found.attempts
        """How many callers have started the body since the key was new, including this one."""
        self.losses = found.losses
        """The number of consecutive earlier attempts that ended without reporting how."""
        self._found = found
        self._results = results
        self._lease = hold
        self._threads = threads
        self._is_ending = False
        """True if a coroutine has begun to report how the body ended."""

    @property
    def result(self) -> Any:  # noqa: ANN401 - any result
        """The result that the body returned, or that `done` was called with."""
        if self._lease is not None:
            return self._lease.result
        if self._found.problem is not None:
            raise PayloadError(
                "result", f"the returned value was not stored: {self._found.problem}"
            )
        return self._results.decode_result(self._found.result)

    @property
    def is_held(self) -> bool:
        """True if, as far as is known here, no other caller can be running the body."""
        return self._lease is not None and self._lease.is_held

    @property
    def is_open(self) -> bool:
        """True if the end of the body has not been reported yet."""
        return self._lease is not None and not (self._lease.has_ended or self._is_ending)

    @property
    def is_done(self) -> bool:
        """True if the body is recorded as done."""
        return self._found.state == "done" if self._lease is None else self._lease.is_done

    def check(self) -> None:
        """Raise ClaimLost unless the key is certainly held."""
        if not self.is_held:
            raise self._lost()

    def done(self, result: object = None) -> None:
        """Record that the body is done, and its result. It is durable when this returns.

        A result that cannot be stored does not undo the body. The key is then done without a
        result, and later callers get an error that says why. An exception that is thrown into this
        thread meanwhile is raised after the write. A generator or an awaitable is refused, even a
        future that has ended, because a body that returns one may have only started.
        """
        check_is_result(result)
        self._record_end(lambda: self._finish(self._begin_end(), result))

    async def adone(self, result: object = None) -> None:
        """Record that the body is done without blocking the event loop; see `done`."""
        check_is_result(result)
        await self._arecord_end(lambda: self._finish(self._begin_end(), result))

    def fail(self, *, began: bool = True, forget: bool = False) -> None:
        """Release the key because the body failed or never started. It may be tried again.

        With `forget` the ledger keeps nothing: the key counts as new, also for another payload.
        """
        self._record_end(lambda: self._fail(self._begin_end(), began=began, forget=forget))

    async def afail(self, *, began: bool = True, forget: bool = False) -> None:
        """Release the key without blocking the event loop; see `fail`."""
        await self._arecord_end(lambda: self._fail(self._begin_end(), began=began, forget=forget))

    def __repr__(self) -> str:
        what = "first" if self.first else self._found.state
        return f"<claim of {self.key!r}, {what}, fence {self.fence}>"

    def _record_end(self, how: Callable[[], None]) -> None:
        """Report how the body ended, on a thread that cannot be interrupted."""
        if self._threads is None:
            how()
        else:
            self._threads.run(how)

    async def _arecord_end(self, how: Callable[[], None]) -> None:
        """Report it without blocking the event loop, even if the caller is interrupted."""
        job = HelperJob(how)
        # A caller that is cancelled during the report must not treat the body as failed. No
        # exception can occur between this line and the block.
        self._is_ending = True
        try:
            await run_in_thread(job.run)
        except asyncio.CancelledError:
            raise
        except BaseException:
            if self._threads is not None and not job.has_ended:
                self._threads.ensure_done(job)
            raise
        job.result()

    def _begin_end(self) -> "KeyLease":
        """Return the lease, whose end can be reported only once."""
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
        """Hold a key until `deadline`, or later if that is extended.

        `patience` is the number of seconds for which a report of the body's end is retried.
        """
        self.key = key
        self.owner = owner
        self.fence = fence
        self.result: object = None
        self.is_done = False
        self.lost = threading.Event()
        self.finalizer: ClaimFinalizer | None = None
        """Tied to the claim object that the caller has."""
        self._ending = threading.Lock()
        self._ledger = ledger
        self._ttl = None if ttl is None else round(ttl * MICROSECONDS)
        self._deadline = deadline
        self._patience = patience
        self._ended = ended
        self._pid = os.getpid()

    @property
    def has_ended(self) -> bool:
        """True if the end of the body was reported, or is being reported."""
        return self._ending.locked()

    def begin_end(self) -> bool:
        """Begin to report the end of the body. Return False if that has already begun."""
        return self._ending.acquire(blocking=False)

    @property
    def is_held(self) -> bool:
        """True if, as far as is known here, no other caller can hold the key."""
        is_ours = not self.has_ended and not self.lost.is_set() and self._pid == os.getpid()
        return is_ours and monotonic() < self._deadline

    def extend(self, deadline: float) -> None:
        """Set a new end of the lease."""
        self._deadline = deadline

    def finish(self, result: str | None, problem: str | None) -> bool:
        """Record that the body is done. Retry an outage while the lease lasts.

        The body has had its effect. Without the retries, it would run again.
        """
        op = FinishKey(self.key, self.owner, self.fence, self._ttl, result, problem)
        self.is_done = self._end(op, self._patience)
        return self.is_done

    def fail(self, *, began: bool = True, forget: bool = False) -> bool:
        """Record that the body failed.

        If that is impossible, the end of the lease releases the key.
        """
        ttl = 0 if forget else self._ttl
        return self._end(FailKey(self.key, self.owner, self.fence, ttl, began), 0.0)

    def abandon(self, ledger: Ledger) -> None:
        """Record that no caller is left to report the end, in a ledger that may be closed."""
        self._ledger = lambda: ledger
        self.fail()

    def _end(self, op: FinishKey | FailKey, patience: float) -> bool:
        if self._pid != os.getpid():
            return False
        until = monotonic() + patience
        try:
            while True:
                try:
                    was_ours = self._ledger().do(op)
                except WouldBlockItself:
                    raise  # The caller itself blocks this write for as long as it waits for us.
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
    """Releases a key when its claim object has been garbage-collected.

    The caller was then interrupted before it could report how the body ended. The collector puts
    this object into the inbox of the helper threads, which involves no Python code that could be
    interrupted.
    """

    __slots__ = ("_hold", "_ledger")
    _hold: KeyLease
    _ledger: Ledger

    def __new__(
        cls, claim: GuardClaim, hold: KeyLease, threads: HelperThreads, ledger: Ledger
    ) -> Self:
        """Tie a lease to the claim object of its caller, and to the ledger of its key."""
        tie = super().__new__(cls, claim, threads.inbox.put)
        tie._hold = hold
        tie._ledger = ledger
        return tie

    def __init__(self, *_what: object) -> None: ...

    def run(self) -> None:
        """Release the key."""
        if self._hold.begin_end():
            # No caller is left to receive an error. If this fails, the lease expires. A guard that
            # was closed meanwhile is not opened again, because nothing would close it.
            with suppress(DulyError, OSError):
                self._hold.abandon(self._ledger)

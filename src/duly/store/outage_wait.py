"""Repeats operations of a task body while the database is unavailable.

Callers outside a task body get the error at once. An operation of a body is repeated until the
database answers, the attempt times out, or the worker's lease would have expired.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Protocol, TypeVar, cast

from duly.clock import monotonic
from duly.errors import OUTAGES, StoreBusy
from duly.store.ops.op import AnyOp, Op, is_repeatable
from duly.store.ops.runs import Enqueue, EnqueueAgain

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.25
A = TypeVar("A")
T = TypeVar("T")


class RunOfBody(Protocol):
    """The part of a run's context that limits how long an operation of its body may wait."""

    def wait_until(self) -> float:
        """Return the end of the wait (monotonic); raise AttemptTimedOut after the timeout."""
        ...


CURRENT_RUN: ContextVar[RunOfBody | None] = ContextVar("duly_current_run", default=None)
"""The run whose body is executing in this context."""


class _SubmittingWriter(Protocol):
    """The part of a store that writes."""

    def submit(
        self, ops: Sequence[Op[A]], done: Callable[[list[A] | BaseException], None]
    ) -> None: ...


class OutageWait:
    """The wait of one operation of a body. An operation outside a body does not wait."""

    def __init__(self) -> None:
        self._run = CURRENT_RUN.get()
        self._until = 0.0 if self._run is None else self._run.wait_until()
        self._pause = FIRST_PAUSE_SECONDS

    def next_pause(self, error: BaseException) -> float | None:
        """Return how long to pause before a retry; None if the operation may not be retried."""
        if self._run is None or not is_outage(error):
            return None
        # A renewed lease would extend the limit, but the database is available then. So the earlier
        # limit applies.
        self._until = min(self._until, self._run.wait_until())
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return pause if monotonic() + pause < self._until else None


def is_outage(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, means that the store was unavailable."""
    seen: set[int] = set()
    while error is not None and not isinstance(error, OUTAGES):
        # Errors can be raised from each other in a circle.
        seen.add(id(error))
        error = error.__cause__ or error.__context__
        if id(error) in seen:
            return False
    return error is not None and not isinstance(error, StoreBusy)


def as_repeatable(ops: Sequence[Op[A]]) -> Sequence[Op[A]]:
    """Return the same ops for a retry that accepts each run at most once."""
    return [cast("Op[A]", _as_repeatable(op)) for op in ops]


def _as_repeatable(op: AnyOp) -> AnyOp:
    return EnqueueAgain._make(op) if type(op) is Enqueue else op


def retry_after_error(act: Callable[[], T], error: BaseException) -> T:
    """Repeat an operation that failed with this error, while the calling body may wait.

    A thread with a running event loop never waits, since it would block the coroutines of other
    runs.
    """
    wait = OutageWait()
    while True:
        pause = wait.next_pause(error)
        if pause is None or asyncio._get_running_loop() is not None:  # noqa: SLF001 - raises nothing
            raise error
        time.sleep(pause)
        try:
            return act()
        except OUTAGES as failed:
            error = failed


def retry_during_outage(act: Callable[[], T]) -> T:
    """Carry out a repeatable operation, and repeat it while the calling body may wait."""
    try:
        return act()
    except OUTAGES as error:
        return retry_after_error(act, error)


async def submit_async(store: _SubmittingWriter, ops: Sequence[Op[A]]) -> list[A]:
    """Write the ops without blocking the running event loop."""
    wait: OutageWait | None = None
    while True:
        try:
            return await _submit(store, ops)
        except OUTAGES as error:
            wait = wait or OutageWait()
            pause = wait.next_pause(error)
            if pause is None or not is_repeatable(ops):
                raise
        await asyncio.sleep(pause)
        ops = as_repeatable(ops)


def _submit(store: _SubmittingWriter, ops: Sequence[Op[A]]) -> asyncio.Future[list[A]]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[A]] = loop.create_future()

    def resolve(answers: list[A] | BaseException) -> None:
        if future.cancelled():
            return
        if isinstance(answers, BaseException):
            future.set_exception(answers)
        else:
            future.set_result(answers)

    def done(answers: list[A] | BaseException) -> None:
        loop.call_soon_threadsafe(resolve, answers)

    store.submit(ops, done)
    return future

"""Enters a key: as its first caller, or after it is done."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from duly.async_threads import run_in_thread
from duly.clock import FIRST_PAUSE, MICROSECONDS, longer_pause, monotonic, new_id
from duly.errors import Busy, ClaimLost, KeyConflict, StoreError
from duly.guard.claim import GuardClaim
from duly.guard.threads import HelperJob, HelperThreads
from duly.store.ops.guard import Guarded

_LONGEST_PAUSE = 0.5


class KeyEntry:
    """The return value of `guard.once`, for `with` or `async with`."""

    def __init__(
        self,
        key: str,
        attempt: Callable[[str], GuardClaim | Guarded],
        wait: float,
        threads: HelperThreads,
    ) -> None:
        """Set up the entry.

        `attempt` tries once to take the key for an owner. It returns a claim if the key was taken
        or its call is already done, else what holds the key. Entering tries for `wait` seconds.
        """
        self._key = key
        self._attempt = attempt
        self._wait = wait
        self._threads = threads
        self._turn = threading.Lock()
        self._claims: list[GuardClaim] = []
        """The claim of the caller that is inside. At most one."""
        self.claim: GuardClaim | None = None
        """The claim of the last entry."""
        self.refusal: BaseException | None = None
        """What entering the key raised. The block may raise another exception of that type."""

    def __enter__(self) -> GuardClaim:
        job: HelperJob | None = None
        try:
            with self._entering():
                owner, until, pause = new_id(), monotonic() + self._wait, FIRST_PAUSE
                while True:
                    job = HelperJob(partial(self._attempt, owner))
                    self._threads.submit(job)
                    found = job.result()
                    if isinstance(found, GuardClaim):
                        break
                    pause = self._pause(pause, until, found)
                    time.sleep(pause)
                self._claims.append(found)
            self.claim = found
        except BaseException as error:
            self.refusal = error
            # An exception from outside may arrive before the job was submitted, or after it is
            # done. If the answer is `Guarded`, nothing was taken.
            if job is not None and not isinstance(job.answer, Guarded):
                self._threads.run(partial(_undo_entry, job))
            raise
        return found

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with self._leaving() as claim:
            _record_end(claim, error)

    async def __aenter__(self) -> GuardClaim:
        job: HelperJob | None = None
        try:
            with self._entering():
                owner, until, pause = new_id(), monotonic() + self._wait, FIRST_PAUSE
                while True:
                    job = HelperJob(partial(self._attempt, owner))
                    await run_in_thread(job.run)
                    found = job.result()
                    if isinstance(found, GuardClaim):
                        break
                    pause = self._pause(pause, until, found)
                    await asyncio.sleep(pause)
                self._claims.append(found)
            self.claim = found
        except BaseException as error:
            self.refusal = error
            if job is not None and not isinstance(job.answer, Guarded):
                take_back = partial(_undo_entry, job)
                if isinstance(error, asyncio.CancelledError):
                    self._threads.submit(
                        HelperJob(take_back)
                    )  # The event loop continues, and must not wait.
                else:
                    self._threads.run(take_back)
            raise
        return found

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with self._leaving() as claim:
            if claim.is_open and error is None:
                await claim.adone()
            elif claim.is_open:
                with suppress(StoreError, ClaimLost):
                    await claim.afail()

    @contextmanager
    def _entering(self) -> Iterator[None]:
        """Refuse a second concurrent entry: on exit, the two could not be distinguished."""
        if not self._turn.acquire(blocking=False):
            raise RuntimeError(
                f"this guard.once({self._key!r}) is already entered; call guard.once() again in "
                "each thread and each coroutine"
            )
        try:
            yield
        except BaseException:
            self._turn.release()
            raise

    @contextmanager
    def _leaving(self) -> Iterator[GuardClaim]:
        try:
            yield self._claims.pop()
        finally:
            self._turn.release()

    @property
    def is_done(self) -> bool:
        """True if it was entered, and the body is recorded as done."""
        return self.claim is not None and self.claim.is_done

    def _pause(self, pause: float, until: float, found: Guarded) -> float:
        """Return how long to wait before the next try.

        Raise if waiting is useless or time is up.
        """
        if found.conflict:
            raise KeyConflict(self._key)
        left = until - monotonic()
        if left <= 0:
            raise Busy(self._key, found.holder, found.left / MICROSECONDS)
        return longer_pause(pause, longest=_LONGEST_PAUSE, left=left)


def _record_end(claim: GuardClaim, error: BaseException | None) -> None:
    """Report the end of a body that has not reported it itself."""
    if not claim.is_open:
        return
    if error is None:
        claim.done()
        return
    # The body's own error matters more. A key that cannot be released is free after its lease.
    with suppress(StoreError, ClaimLost):
        claim.fail()


def _undo_entry(job: HelperJob) -> None:
    """Release a key that was taken for a caller that is gone, or prevent that it is taken."""
    if job.try_begin():
        return
    job.wait()
    with suppress(StoreError, ClaimLost):
        _release_key(job.answer)


def _release_key(tried: GuardClaim | Guarded | None) -> None:
    if isinstance(tried, GuardClaim) and tried.is_open:
        tried.fail()

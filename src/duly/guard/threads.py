"""Runs a guard's calls to its ledger on threads that cannot be interrupted.

Engines end a body that takes too long by throwing an exception into its thread, from a signal
handler or through the interpreter. The exception can occur at any instruction: during a commit, or
right after a key was taken and before any code knows about it. So callers only submit a job, which
involves no Python instruction that could be interrupted, and wait.
"""

import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from duly.clock import monotonic
from duly.store.task_connection import BODY

T = TypeVar("T")

_IDLE = 8
"""How many idle threads are kept."""
_LINGER_SECONDS = 5.0
"""How long an interrupted caller waits for its job. Its process may end right afterwards."""

_LOOK_SECONDS = 0.001


class HelperRunnable(Protocol):
    """Runs on a helper thread: a job, or the finalizer of a claim that was garbage-collected."""

    def run(self) -> None: ...


class HelperJob:
    """A function that is called once, to its end, even if its caller is gone."""

    __slots__ = ("_act", "_begun", "_body", "_ended", "answer", "error", "has_ended")

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self._body = BODY.get()
        self._begun = threading.Lock()
        self._ended = threading.Lock()
        self._ended.acquire()
        self.has_ended = False
        self.answer: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run the function, unless a thread runs or has run it."""
        if self.try_begin():
            # A store must know which body holds its lock.
            BODY.set(self._body)
            try:
                self.answer = self._act()
            except BaseException as error:  # noqa: BLE001 - passed to the waiting caller
                self.error = error
            self.has_ended = True
            self._ended.release()

    def try_begin(self) -> bool:
        """Prevent other threads from starting the job. Return False if it has already started."""
        return self._begun.acquire(blocking=False)

    def wait(self) -> None:
        """Wait for its end."""
        # No exception can occur between taking such a lock and releasing it to the next waiter.
        with self._ended:
            pass

    def wait_briefly(self, seconds: float) -> None:
        """Wait for its end, for a limited time."""
        # Polls instead of taking the lock with a timeout. A caller that is interrupted between
        # taking the lock and releasing it would leave the other callers waiting.
        until = monotonic() + seconds
        while not self.has_ended and monotonic() < until:
            time.sleep(_LOOK_SECONDS)

    def result(self) -> Any:  # noqa: ANN401 - any result
        """Wait for the result and return it, or raise its error."""
        self.wait()
        # Breaks a reference cycle: the error refers to frames, and these refer to this job.
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self.answer


class HelperThreads:
    """Threads that start with the first job. There is always one more than running jobs."""

    def __init__(self) -> None:
        self.reset_after_fork()
        _instances.add(self)

    def reset_after_fork(self) -> None:
        """Forget all threads. A forked child has none of them."""
        self.inbox: SimpleQueue[HelperRunnable | None] = SimpleQueue()
        self._mutex = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    def run(self, act: Callable[[], T]) -> T:
        """Call a function and return its result. It completes even if its caller is interrupted."""
        job = HelperJob(act)
        try:
            self.submit(job)
            result: T = job.result()
        except BaseException:
            if not job.has_ended:
                # The caller was interrupted, perhaps before it submitted the job. A job runs only
                # once.
                self.ensure_done(job)
            raise
        return result

    def ensure_done(self, job: HelperJob) -> None:
        """Run the job of a caller that was interrupted, and wait for its end for a while."""
        self.submit(job)
        job.wait_briefly(_LINGER_SECONDS)

    def submit(self, job: HelperRunnable) -> None:
        """Run a job on a helper thread, or in this thread if none can start."""
        if not self.ensure_thread():
            job.run()
            return
        self.inbox.put(job)
        if self._is_closed:
            job.run()  # The threads may have ended meanwhile. The job runs only once.

    def ensure_thread(self) -> bool:
        """Make sure that a thread reads the inbox. Return False if that is impossible."""
        return not self._is_closed and (self._threads > 0 or self._start())

    def close(self) -> None:
        """Let the threads end when they are idle. Later jobs run in the thread of their caller."""
        self._is_closed = True
        self.inbox.put(None)

    def wait_until_idle(self) -> None:
        """Wait for up to a few seconds until the jobs submitted before `close` have ended."""
        until = monotonic() + _LINGER_SECONDS
        while monotonic() < until:
            with self._mutex:
                # A thread that has just started is not counted, but its job is still in the inbox.
                if self._threads == 0 and self.inbox.qsize() <= 1:
                    return
            time.sleep(_LOOK_SECONDS)

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._serve, name="duly-guard-helper", daemon=True).start()
        except RuntimeError:  # The interpreter is ending, and starts no more threads.
            return False
        return True

    def _serve(self) -> None:
        with self._mutex:
            self._threads += 1
            self._idle += 1
        while True:
            job = self.inbox.get()
            with self._mutex:
                self._idle -= 1
                is_last = self._idle == 0
            if job is None:
                break
            if is_last:
                self._start()
            job.run()
            # If it were kept until the next job, it would keep an unused claim alive.
            job = None
            with self._mutex:
                if self._idle >= _IDLE:
                    self._threads -= 1
                    return
                self._idle += 1
        with self._mutex:
            self._threads -= 1
        self.inbox.put(None)


_instances: "WeakSet[HelperThreads]" = WeakSet()


def _reset_after_fork() -> None:
    for threads in tuple(_instances):
        threads.reset_after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)

"""Does what a guard has to say to its ledger, on threads into which nobody throws exceptions.

Engines end a body that takes too long by throwing an exception into its thread, from a signal's
handler or through the interpreter. It strikes at any instruction: in the midst of a commit, or when
a key was taken and nobody knows of it yet. So callers only hand their errands over, which no
instruction of Python's is part of, and wait.
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
"""How many threads are kept that have nothing to do."""
_LINGER_SECONDS = 5.0
"""How long who was struck waits for the end of its errand: its process may end right after."""

_LOOK_SECONDS = 0.001


class HelperRunnable(Protocol):
    """What a clerk takes in hand: an errand, or the tie of a claim that is gone."""

    def run(self) -> None: ...


class HelperJob:
    """Something that is done once, to its end, whatever becomes of who asks for it."""

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
        """Do it, unless somebody does or has."""
        if self.try_begin():
            # A store tells the body that has its lock from those that may wait for it.
            BODY.set(self._body)
            try:
                self.answer = self._act()
            except BaseException as error:  # noqa: BLE001 - handed to who waits for it
                self.error = error
            self.has_ended = True
            self._ended.release()

    def try_begin(self) -> bool:
        """Have nobody else begin it; say whether nobody has."""
        return self._begun.acquire(blocking=False)

    def wait(self) -> None:
        """Wait for its end."""
        # Nothing strikes between taking such a lock and giving it back to the next who waits.
        with self._ended:
            pass

    def wait_briefly(self, seconds: float) -> None:
        """Wait for its end, but not for ever."""
        # Looks instead of taking the lock for a time: whoever is struck between taking it and
        # giving it back would leave the others waiting.
        until = monotonic() + seconds
        while not self.has_ended and monotonic() < until:
            time.sleep(_LOOK_SECONDS)

    def result(self) -> Any:  # noqa: ANN401 - what it came to
        """Wait for what it came to."""
        self.wait()
        # An error knows the frames it came by, and those know this.
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self.answer


class HelperThreads:
    """Threads that begin with the first errand. There is always one more than errands under way."""

    def __init__(self) -> None:
        self.reset_after_fork()
        _instances.add(self)

    def reset_after_fork(self) -> None:
        """Forget all threads, as a forked child does, which has none of them."""
        self.inbox: SimpleQueue[HelperRunnable | None] = SimpleQueue()
        self._mutex = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    def run(self, act: Callable[[], T]) -> T:
        """Do something and return what it comes to; it is done even if its caller is struck."""
        errand = HelperJob(act)
        try:
            self.submit(errand)
            result: T = errand.result()
        except BaseException:
            if not errand.has_ended:
                # Struck. It may not have been given yet; given twice it is done once.
                self.ensure_done(errand)
            raise
        return result

    def ensure_done(self, errand: HelperJob) -> None:
        """Have an errand done whose caller was struck, and wait for its end for a while."""
        self.submit(errand)
        errand.wait_briefly(_LINGER_SECONDS)

    def submit(self, errand: HelperRunnable) -> None:
        """Have an errand done."""
        if not self.ensure_thread():
            errand.run()
            return
        self.inbox.put(errand)
        if self._is_closed:
            errand.run()  # The threads may have gone meanwhile; it is done once.

    def ensure_thread(self) -> bool:
        """See to it that somebody looks into the inbox; say whether that can be."""
        return not self._is_closed and (self._threads > 0 or self._start())

    def close(self) -> None:
        """Let the threads end when they have nothing to do; who comes later is on its own."""
        self._is_closed = True
        self.inbox.put(None)

    def wait_until_idle(self) -> None:
        """Wait until the errands given before `close` have ended, but only for a few seconds."""
        until = monotonic() + _LINGER_SECONDS
        while monotonic() < until:
            with self._mutex:
                # A thread that has just begun is not counted; its errand is still in the inbox.
                if self._threads == 0 and self.inbox.qsize() <= 1:
                    return
            time.sleep(_LOOK_SECONDS)

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._serve, name="duly-guard-helper", daemon=True).start()
        except RuntimeError:  # The interpreter ends, and starts no more threads.
            return False
        return True

    def _serve(self) -> None:
        with self._mutex:
            self._threads += 1
            self._idle += 1
        while True:
            errand = self.inbox.get()
            with self._mutex:
                self._idle -= 1
                is_last = self._idle == 0
            if errand is None:
                break
            if is_last:
                self._start()
            errand.run()
            # Kept until the next one comes, it would keep a claim alive that nobody has.
            errand = None
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
    for clerk in tuple(_instances):
        clerk.reset_after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)

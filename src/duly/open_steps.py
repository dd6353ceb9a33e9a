"""The steps that an attempt is in, in all its threads and on all its event loops."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import CoroutineType
from typing import Any

_FEWEST_CALLS = 32
"""Calls that were awaited are removed from the list when it has doubled, but not below this."""
_LOOK_SECONDS = 1.0
"""A loop does not report that it was closed. So a wait for a step on it checks this often."""


class Suspend(BaseException):
    """Leaves a body that waits for something. No code may catch it."""

    def __init__(self, step: str, after: float) -> None:
        super().__init__(step)
        self.step = step
        self.after = after


class StepVanished(BaseException):
    """Leaves a body that has reached a step during which an earlier attempt was lost."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class OpenStep:
    """An open step, or a wait that is about to leave the body."""

    __slots__ = ("cancels", "is_left", "name", "task", "thread")

    def __init__(self, name: str, task: "asyncio.Task[object] | None") -> None:
        self.name = name
        self.task = task
        """The asyncio task that is in the step. None means a thread, which cannot be cancelled."""
        self.cancels = 0 if task is None else task.cancelling()
        """How often that task had been cancelled, and had continued, when it reached the step."""
        self.thread = threading.get_ident()
        self.is_left = False
        """True if a wait inside the step is about to leave it."""


class OpenSteps:
    """All open steps of one attempt. Every method may be called from any thread."""

    def __init__(self) -> None:
        # Reentrant, because a coroutine that is garbage-collected ends its steps, in any thread.
        self._lock = threading.RLock()
        self._open: set[OpenStep] = set()
        self._waiting: list[Callable[[], None]] = []
        self._calls: list[tuple[str, CoroutineType[Any, Any, Any]]] = []
        """Calls of coroutine functions, of which some may not have been awaited yet."""
        self._most_calls = _FEWEST_CALLS

    def note_call(self, name: str, coroutine: "CoroutineType[Any, Any, Any]") -> None:
        """Record a call that must be awaited before the body ends."""
        with self._lock:
            if len(self._calls) >= self._most_calls:
                self._calls = [call for call in self._calls if not has_begun(call[1])]
                self._most_calls = max(_FEWEST_CALLS, 2 * len(self._calls))
            self._calls.append((name, coroutine))

    def calls_without_await(self) -> list[str]:
        """Return the names of the calls that have not begun."""
        with self._lock:
            calls, self._calls = self._calls, []
        return [name for name, coroutine in calls if not has_begun(coroutine)]

    def add(self, step: OpenStep) -> None:
        """Record that a step starts."""
        with self._lock:
            self._open.add(step)

    def remove(self, step: OpenStep) -> None:
        """Record that a step has ended."""
        with self._lock:
            self._open.discard(step)
        self._notify()

    def leave(self, steps: Iterable[OpenStep]) -> None:
        """Record that a wait inside these steps is about to leave them."""
        for step in steps:
            step.is_left = True
        self._notify()

    def has_any(self, steps: Iterable[OpenStep]) -> bool:
        """Return whether one of these steps is still open."""
        return not self._open.isdisjoint(steps)

    def is_empty(self) -> bool:
        """Return whether no step is open."""
        return not self._open

    def names(self) -> list[str]:
        """Return the names of the open steps."""
        with self._lock:
            return sorted({str(step.name) for step in tuple(self._open)})

    def cancel_all(self) -> bool:
        """Cancel the tasks that are in steps, each once. Return whether there are any."""
        self.forget_closed_loops()
        with self._lock:
            steps = tuple(self._open)
        return _cancel_tasks(steps)

    def forget_this_thread(self) -> None:
        """Forget the steps of this thread, whose body has ended. Its event loops no longer run.

        If other code runs one of these loops again, it does not continue in a step.
        """
        thread = threading.get_ident()
        _cancel_tasks(self._forget(lambda step: step.thread == thread))

    def forget_closed_loops(self) -> None:
        """Forget the steps that can never continue, so that no step starts inside them."""
        self._forget(lambda step: step.task is not None and step.task.get_loop().is_closed())

    def next_end(self, *, of_left: bool = True) -> "asyncio.Future[None] | None":
        """Return a future that is done when a step has ended. None if no step is open.

        Steps that are about to be left count only with `of_left`.
        """
        loop = asyncio.get_running_loop()
        word: asyncio.Future[None] = loop.create_future()
        is_any = self._await(
            partial(_resolve_on_loop, loop, word), lambda step: of_left or not step.is_left
        )
        if is_any:
            loop.call_later(_LOOK_SECONDS, self._check_loops, word)
        return word if is_any else None

    def wait(self, left: Callable[[], float | None] = lambda: None) -> bool:
        """Wait in this thread until all steps have ended or no time is left.

        Return whether they have.
        """
        words: SimpleQueue[None] = SimpleQueue()
        while self._await(partial(words.put, None), lambda _step: True):
            if not self._wait_for_end(words, left):
                return False
        return True

    def _check_loops(self, word: "asyncio.Future[None]") -> None:
        if not word.done():
            self.forget_closed_loops()
            word.get_loop().call_later(_LOOK_SECONDS, self._check_loops, word)

    def _wait_for_end(self, words: "SimpleQueue[None]", left: Callable[[], float | None]) -> bool:
        while True:
            seconds = left()
            is_last = seconds is not None and seconds <= _LOOK_SECONDS
            try:
                words.get(timeout=seconds if is_last else _LOOK_SECONDS)
            except Empty:
                if is_last:
                    return False
                self.forget_closed_loops()
            else:
                return True

    def _await(self, tell: Callable[[], None], counts: Callable[[OpenStep], bool]) -> bool:
        with self._lock:
            is_any = any(map(counts, tuple(self._open)))
            if is_any:
                self._waiting.append(tell)
        return is_any

    def _forget(self, which: Callable[[OpenStep], bool]) -> list[OpenStep]:
        with self._lock:
            found = list(filter(which, tuple(self._open)))
            self._open.difference_update(found)
        self._notify()
        return found

    def _notify(self) -> None:
        # The garbage collector may call this in a thread that holds any lock. So it must not wait.
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell()


def has_begun(coroutine: "CoroutineType[Any, Any, Any]") -> bool:
    """Return whether a coroutine was awaited, or was cancelled before that."""
    return inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED


def _cancel_tasks(steps: Iterable[OpenStep]) -> bool:
    # A task may be in several nested steps. Its count of cancels was lowest before the outermost.
    cancels: dict[asyncio.Task[object], int] = {}
    for step in steps:
        if step.task is not None:
            cancels[step.task] = min(step.cancels, cancels.get(step.task, step.cancels))
    for task, before in cancels.items():
        with suppress(RuntimeError):  # Its loop is closed.
            task.get_loop().call_soon_threadsafe(_cancel, task, before)
    return bool(cancels)


def _cancel(task: "asyncio.Task[object]", before: int) -> None:
    # A second cancel in the same step would interrupt the cleanup after the first one.
    if task.cancelling() <= before:
        task.cancel()


def _resolve_on_loop(loop: asyncio.AbstractEventLoop, word: "asyncio.Future[None]") -> None:
    with suppress(RuntimeError):  # The loop is closed, so no coroutine waits there.
        loop.call_soon_threadsafe(_resolve, word)


def _resolve(word: "asyncio.Future[None]") -> None:
    if not word.done():
        word.set_result(None)

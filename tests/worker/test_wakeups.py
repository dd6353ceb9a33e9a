"""Who waits and who wakes meet at every pair of places, and the run goes on by that alone.

The look at all that wait, which makes up for wake-ups that died with their senders, is put off
until long after the test. Which pairs, the seed says that pytest shows.
"""

import json
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import pytest

import duly
from duly import Duly, Run, faultpoints
from duly.core.record import Claim
from duly.core.states import PARENT_TAG
from duly.store.ops.steps import WakeRuns
from duly_prove.crash_tasks import is_suspended
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import claim, register, settle, success

SUSPENDING = (
    "operate.before_write",
    "operate.before_commit",
    "operate.after_commit",
    "settle.before_write",
    "settle.before_commit",
    "settle.after_commit",
)
"""What a run passes on its way to wait: it begins the step, then it leaves its worker."""
SENDING = ("operate.before_write", "operate.before_commit", "operate.after_commit")
ENDING = ("settle.before_write", "settle.before_commit", "settle.after_commit", *SENDING)
"""What the last child passes on its way out: its own end, then its parent's wake-up."""
TRIALS = 9
PATIENCE = 0.1
"""Seconds: one side may be locked out by the other where it stands, and has to go on first."""


class Meeting:
    """Holds the waiter at one place until the waker has come to another, and the waker there."""

    def __init__(self, waiter_at: str, waker_at: str, wake: Callable[[], object]) -> None:
        self._waiter_at, self._waker_at = waiter_at, waker_at
        self._waiter_came, self._waker_came = threading.Event(), threading.Event()
        self._waiter_left = threading.Event()
        self.has_begun = threading.Event()
        """Set by the waiter's body: from now on, who is not the waker is the waiter.

        Its writes may be made by another thread of its worker, which has some too just then.
        """
        self._waker = threading.Thread(target=self._come, args=(wake,))
        for name in SUSPENDING:
            faultpoints.arm(name, partial(self._pass, name))
        self._waker.start()

    def join(self) -> bool:
        """Wait for the waker; say whether both have been where they were to meet."""
        self._waker.join(20)
        faultpoints.disarm()
        return self._waiter_came.is_set() and self._waker_came.is_set()

    def _come(self, wake: Callable[[], object]) -> None:
        self._waiter_came.wait(5)
        wake()

    def _pass(self, name: str) -> None:
        if threading.current_thread() is self._waker:
            if name == self._waker_at:
                self._waker_came.set()
                self._waiter_left.wait(PATIENCE)
        elif self.has_begun.is_set():
            if name == self._waiter_at and not self._waiter_came.is_set():
                self._waiter_came.set()
                self._waker_came.wait(PATIENCE)
            if name == "settle.after_commit":
                self._waiter_left.set()


@pytest.fixture
def other(store_url: str, app: Duly) -> Iterator[Duly]:
    """A second application on the same store, with connections of its own."""
    assert app.runs.list() == []
    other = Duly(store_url)
    assert other.runs.list() == []
    yield other
    other.close()


def test_an_event_that_meets_a_suspension_anywhere_wakes_it(app: Duly, other: Duly):
    @app.task(name="order")
    def order(event: str) -> object:
        begin()
        return duly.wait_for(event)

    def begin() -> None:
        if meetings:
            meetings[-1].has_begun.set()

    meetings: list[Meeting] = []
    pairs = random.sample([*product(SUSPENDING, SENDING)], TRIALS)
    with app.worker(concurrency=1, recheck=3600):
        _let_the_first_look_pass(order.enqueue("never"))
        for number, (waiter_at, waker_at) in enumerate(pairs):
            send = partial(other.send_event, f"paid:{number}", number)
            meetings.append(Meeting(waiter_at, waker_at, send))
            run = order.enqueue(f"paid:{number}")
            has_met = meetings[-1].join()

            assert has_met, (waiter_at, waker_at)
            assert run.result(timeout=4) == number, (waiter_at, waker_at)
            assert [step.name for step in run.steps()] == [f"event:paid:{number}"]


def test_a_last_child_that_meets_a_suspension_anywhere_wakes_it(app: Duly, other: Duly):
    @app.task(name="total", queue="parents")
    def total() -> list[int]:
        begin()
        return duly.gather([square.call(3)])

    @app.task(name="square", queue="children")
    def square(number: int) -> int:
        return number * number

    def begin() -> None:
        if meetings:
            meetings[-1].has_begun.set()

    meetings: list[Meeting] = []
    pairs = random.sample([*product(SUSPENDING, ENDING)], TRIALS)
    with app.worker(
        concurrency=1, queues="parents", recheck=3600, beat=3600, lease=14400
    ):  # Nobody recovers a worker that is made by hand.
        _let_the_first_look_pass(total.enqueue())
        for child in app.runs.list(task=square):
            child.cancel()
        register(other.store, tasks=(square.name,))
        for waiter_at, waker_at in pairs:
            end = partial(_end_child, other, square.name)
            meetings.append(Meeting(waiter_at, waker_at, end))
            run = total.enqueue()
            has_met = meetings[-1].join()

            assert has_met, (waiter_at, waker_at)
            assert run.result(timeout=4) == [9], (waiter_at, waker_at)
            assert len(app.runs.list(tag=(PARENT_TAG, run.id))) == 1


def _let_the_first_look_pass(waiting: Run) -> None:
    """Have something wait when the worker takes its first look, so that it takes no other."""
    wait_until(lambda: is_suspended(waiting), seconds=20, what="the run waits")
    wait_until(lambda: waiting.cancel() == "cancelled", seconds=20, what="it is cancelled")


def _end_child(other: Duly, task: str) -> None:
    """Do by hand what another worker does: claim the child, settle it, wake its parent."""
    found: list[Claim] = []

    def has_claimed() -> bool:
        found.extend(claim(other.store, queue="children", tasks=(task,)))
        return found != []

    wait_until(has_claimed, seconds=20, what="the child is there")
    settle(other.store, success(found[0], "9"))
    other.store.do(WakeRuns((json.loads(found[0].tags or "{}")[PARENT_TAG],)))

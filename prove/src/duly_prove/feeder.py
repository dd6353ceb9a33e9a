"""Enqueues the workload, and records the requests and the accepted runs."""

import threading
from collections.abc import Callable
from random import Random
from typing import Any

from duly.app import Duly
from duly.clock import monotonic
from duly.core.states import FINAL
from duly.task import Call
from duly_prove import workload
from duly_prove.history import EnqueueRequest

Mix = Callable[[int, Random], Call[Any]]

RATE = 120.0
"""Runs per second."""

_BATCH = 10
_MILLISECONDS = (5, 90)
_SAMPLE = 300
_LONG_SHARE = 0.12
_LONG_MILLISECONDS = (1_000, 2_000)
_SNAPSHOT_SECONDS = 0.25


def everything(number: int, random: Random, *, duration_factor: float = 1.0) -> Call[Any]:
    """Return a call of one of all kinds of task, most of them transactional or held.

    With few runs, tasks should take longer, so that a fault hits as many running ones.
    """
    milliseconds = round(random.randint(*_MILLISECONDS) * duration_factor)
    draw = random.random()
    for share, make in _SHARES:
        draw -= share
        if draw < 0:
            return make(number, milliseconds)
    return workload.notify.call(number, milliseconds, milliseconds)


def everything_and_long_bodies(
    number: int, random: Random, *, duration_factor: float = 1.0
) -> Call[Any]:
    """Return a call of any kind, sometimes one that is still running after a takeover."""
    draw = random.random()
    if draw < _LONG_SHARE:
        return workload.notify.call(number, random.randint(*_LONG_MILLISECONDS), 500)
    if draw < 2 * _LONG_SHARE:
        short = random.randint(5, 90)
        return workload.notify.call(number, short, random.randint(*_LONG_MILLISECONDS))
    return everything(number, random, duration_factor=duration_factor)


_SHARES: tuple[tuple[float, Callable[[int, int], Call[Any]]], ...] = (
    (0.40, workload.order.call),
    (0.05, lambda number, milliseconds: workload.order.call(number, milliseconds, 5)),
    (0.20, workload.charge.call),
    (0.10, workload.subscribe.call),
    (0.01, workload.pack.call),
)


class Feeder:
    """A thread that keeps some runs waiting, and takes snapshots in between.

    It enqueues at most `rate` runs per second: the faults matter most, and restarting processes
    needs the machine's capacity more than runs do.
    """

    def __init__(self, app: Duly, mix: Mix, random: Random, *, backlog: int, rate: float) -> None:
        self._app = app
        self._mix = mix
        self._random = random
        self._backlog = backlog
        self._pause = _BATCH / rate
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duly-feeder", daemon=True)
        self._error: BaseException | None = None
        self._snapshot_at = 0.0
        self._finals: dict[str, str] = {}
        self.requests: list[EnqueueRequest] = []
        self.accepted: list[str] = []
        self.missing: list[str] = []
        self.went_back: list[str] = []
        self.snapshots = 0

    def start(self) -> None:
        """Start to enqueue."""
        self._thread.start()

    def stop(self) -> None:
        """Stop enqueueing. Raise the error of the thread, if there was one."""
        self._ending.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def enqueue(self, count: int) -> None:
        """Enqueue some runs now."""
        first = len(self.requests)
        calls: list[Call[Any]] = [self._mix(first + place, self._random) for place in range(count)]
        self.requests += [EnqueueRequest("invoked", call.op.run_id, call.op.task) for call in calls]
        runs = self._app.enqueue_many(calls)
        self.requests += [
            EnqueueRequest("accepted", run.id, call.op.task)
            for run, call in zip(runs, calls, strict=True)
        ]
        self.accepted += [run.id for run in runs]

    def _run(self) -> None:
        try:
            while not self._ending.wait(self._pause):
                if waiting(self._app) < self._backlog:
                    self.enqueue(_BATCH)
                if monotonic() - self._snapshot_at > _SNAPSHOT_SECONDS:
                    self._snapshot_at = monotonic()
                    self._take_snapshot()
        except BaseException as error:  # noqa: BLE001 - raised again in `stop`
            self._error = error

    def _take_snapshot(self) -> None:
        """Read some accepted runs in one statement. None may be missing or no longer final."""
        size = min(_SAMPLE, len(self.accepted))
        asked = self._random.sample(self.accepted, size)
        states = self._app.store.get_states(asked)
        self.snapshots += 1
        self.missing += [run_id for run_id in asked if run_id not in states]
        for run_id, state in states.items():
            if self._finals.get(run_id, state) != state:
                self.went_back.append(run_id)
            if state in FINAL:
                self._finals[run_id] = state


def waiting(app: Duly) -> int:
    """Return how many runs of the workload have not ended."""
    return sum(
        queue.ready + queue.waiting + queue.running
        for queue in app.queues.list()
        if queue.name == workload.QUEUE
    )

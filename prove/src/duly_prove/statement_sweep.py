"""Kills a task at one statement after another, and lets other processes finish its work."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count, product
from random import Random
from typing import Any, NamedTuple, Self

from duly.clock import monotonic
from duly.events import EventBus
from duly.run import Run
from duly.store.store_factory import runtime_folder
from duly.worker.services.recovery import recover_worker
from duly_prove import crash_tasks
from duly_prove.crash_tasks import app, check_task, event_of, is_sent, is_suspended
from duly_prove.fork_server import SIDES, CrashOrder, CrashOutcome, ForkServer
from duly_prove.process_tree import wait_for

RECHECK_SECONDS = 1.0
RESUME_SECONDS = 20.0
"""How long a run may take to continue once it waits for nothing."""
_LOOK_SECONDS = 0.005


class StatementKill(NamedTuple):
    """One killed process, and the result after other processes have finished its work."""

    order: CrashOrder
    fate: CrashOutcome
    violations: list[str]
    seconds: float
    """From its death to the end of the run."""


class StatementSweep:
    """A context manager with a running fork server and the table of the rows.

    With a stride, only every n-th statement is used, from a random first one. With a thread, only
    the statements of that thread are used.
    """

    def __init__(
        self, url: str, *, stride: int = 1, thread: str | None = None, random: Random | None = None
    ) -> None:
        self._stride = stride
        self._thread = thread
        self._random = random or Random(1)  # noqa: S311 - a seed must repeat what it chose
        app.use_url(url)
        self._fork_server = ForkServer(url)

    def __enter__(self) -> Self:
        with app.worker(concurrency=1):
            crash_tasks.create_table.enqueue().result(RESUME_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._fork_server.__exit__()
        app.close()

    def work(self, name: str) -> Iterator[StatementKill]:
        """Kill workers that run a crash task. Another worker starts when they are dead."""
        crash_task = crash_tasks.CRASH_TASKS[name]

        def finish(run: Run[Any]) -> list[str]:
            recover_killed_workers()
            if crash_task.awaits_event:
                app.send_event(event_of(run.id), 1)
            # The next recheck replaces a wake-up that died with its worker.
            with app.worker(concurrency=2, recheck=RECHECK_SECONDS):
                return _ended(run)

        yield from self._sweep("work", name, crash_task.task.enqueue, finish)

    def send(self) -> Iterator[StatementKill]:
        """Kill the sender of an event that a run waits for, while a worker is alive."""

        def finish(run: Run[Any]) -> list[str]:
            if not is_sent(event_of(run.id)):
                app.send_event(event_of(run.id), 1)
            return _ended(run)

        with app.worker(concurrency=2, recheck=RECHECK_SECONDS):
            yield from self._sweep("send", "hear", lambda: _suspended("hear"), finish)

    def complete_children(self) -> Iterator[StatementKill]:
        """Kill workers of only the children, while another worker with the parent is alive."""

        def finish(run: Run[Any]) -> list[str]:
            recover_killed_workers()
            if any(not child.is_final for child in _children(run)):
                self._fork_server.run(CrashOrder("mind", run.id, "", SIDES[0], 0))
            return _ended(run)

        with app.worker(concurrency=2, queues=crash_tasks.QUEUE, recheck=RECHECK_SECONDS):
            yield from self._sweep("mind", "collect", lambda: _suspended("collect"), finish)

    def tick(self) -> Iterator[StatementKill]:
        """Kill the process that makes a due run claimable."""

        def begin() -> Run[Any]:
            with app.worker(concurrency=1):
                run = _suspended("hear")
            app.send_event(event_of(run.id), 1)
            return run

        def finish(run: Run[Any]) -> list[str]:
            with app.worker(concurrency=1):
                return _ended(run)

        yield from self._sweep("tick", "hear", begin, finish)

    def _sweep(
        self,
        act: str,
        name: str,
        begin: Callable[[], Run[Any]],
        finish: Callable[[Run[Any]], list[str]],
    ) -> Iterator[StatementKill]:
        """Kill processes on either side of each statement of each thread.

        Without a stride, the sweep of a thread ends when a process completes without a kill.
        """

        def strike(thread: str, side: str, number: int) -> StatementKill:
            run = begin()
            order = CrashOrder(act, run.id, thread, side, number)
            fate = self._fork_server.run(order)
            died_at = monotonic()
            broken = finish(run)
            seconds = monotonic() - died_at
            return StatementKill(
                order, fate, broken or check_task(crash_tasks.CRASH_TASKS[name], run), seconds
            )

        passed = strike("", SIDES[0], 0)
        yield passed
        said = {
            thread: number
            for thread, number in passed.fate.statement_counts.items()
            if thread == (self._thread or thread)
        }
        if self._stride > 1:
            for place in self._sample(said):
                yield strike(*place)
            return
        for thread, side in product(said, SIDES):
            for number in count(1):
                struck = strike(thread, side, number)
                yield struck
                if not struck.fate.was_killed:
                    break

    def _sample(self, said: dict[str, int]) -> list[tuple[str, str, int]]:
        """Return every n-th of all statements of all threads, from a random first one."""
        places = [
            (thread, side, number)
            for (thread, last), side in product(said.items(), SIDES)
            for number in range(1, last + 1)
        ]
        first = self._random.randrange(min(len(places), self._stride))
        return places[first :: self._stride]


def recover_killed_workers() -> None:
    """Recover the killed workers, instead of waiting until their leases expire."""
    for worker in app.store.list_workers():
        if not worker.has_ended and worker.pid != os.getpid():
            recover_worker(app.store, EventBus(), worker.id, runtime_folder(app.store))


def count_statements(strikes: Iterable[StatementKill]) -> dict[str, int]:
    """Return the number of kills by the first words of the statement."""
    words = Counter(
        " ".join((struck.fate.statement or "").split()[:3])
        for struck in strikes
        if struck.fate.was_killed
    )
    return dict(sorted(words.items()))


def _suspended(name: str) -> Run[Any]:
    """Return a waiting run of a crash task."""
    run = crash_tasks.CRASH_TASKS[name].task.enqueue()
    if not wait_for(lambda: is_suspended(run), RESUME_SECONDS, _LOOK_SECONDS):
        message = f"run {run.id} did not reach its wait"
        raise TimeoutError(message)
    return run


def _ended(run: Run[Any]) -> list[str]:
    """Wait for a run, then for its children. Return which of them did not continue."""
    return _late(run) or [line for child in _children(run) for line in _late(child)]


def _late(run: Run[Any]) -> list[str]:
    if wait_for(lambda: run.refresh().is_final, RESUME_SECONDS, _LOOK_SECONDS):
        return []
    return [f"run {run.id} did not continue within {RESUME_SECONDS:g} s"]


def _children(run: Run[Any]) -> list[Run[Any]]:
    return app.runs.list(tag=(crash_tasks.ORDER_TAG, run.id))

"""Runs an application's tasks in the calling thread, with time that the test controls."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from duly import faultpoints
from duly.api.runs import Filter, every_run
from duly.app import Duly
from duly.app_store import TEST_URLS
from duly.clock import MICROSECONDS
from duly.core.suggestions import nearest
from duly.errors import BadOption
from duly.run import Run
from duly.store.due_schedules import fire_due
from duly.store.ops.recovery import Recover
from duly.task import Call, Task
from duly.testing.stores import FreshStore
from duly.worker.inline_worker import InlineWorker
from duly.worker.services.recovery import judge_one_slot_run


class _DeadWorker(NamedTuple):
    worker: InlineWorker
    died_at: int


class Harness:
    """An application on a store of the test's own.

    Runs take the same path as in a worker (codec, claim, fence, settle), one after the other, in
    this thread. Leases, retries, delays and schedules use the time that `advance` moves. Timeouts
    of tasks do not interrupt them. Until `close`, an application in this process that has no
    harness cannot use its store, and raises StoreRefused.
    """

    def __init__(self, app: Duly, store: FreshStore) -> None:
        self.app = app
        self._test_store = store
        self._url = app.url
        self._dead: list[_DeadWorker] = []
        TEST_URLS.add(store.url)
        app.use_url(store.url, clock=store.clock)
        try:
            app.store.read_schema()
            store.freeze()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Restore the application's own store, and remove the test's."""
        faultpoints.disarm()
        TEST_URLS.discard(self._test_store.url)
        self.app.use_url(self._url)
        self._test_store.remove()

    def now(self) -> int:
        """Return the time of the store, in microseconds."""
        return self.app.store.now()

    def advance(self, seconds: float | timedelta) -> None:
        """Move time forward. Everything that is due by then runs at the next `drain`."""
        length = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        if length < timedelta():
            raise BadOption(
                "the clock of a test cannot go back; restart the test with a fresh store instead"
            )
        self._test_store.advance(length // timedelta(microseconds=1))

    def drain(self) -> int:
        """Run until nothing is due. Return the number of attempts.

        Runs of a worker that died at least a lease ago are recovered first.
        """
        self._recover()
        self.app.schedules.sync()
        attempts = 0
        while True:
            # A worker that has left claims no more runs, so each round has its own.
            worker = InlineWorker(self.app.store, self.app.registry, self.app.bus)
            try:
                fired = fire_due(self.app.store)
                ran = worker.drain()
            except faultpoints.SimulatedCrash:
                self._dead.append(_DeadWorker(worker, self.now()))
                raise
            attempts += ran
            if not ran and not fired and not fired.has_more:
                return attempts

    @contextmanager
    def crash_at(self, point: str, *, hit: int = 1) -> Iterator[None]:
        """Simulate the death of the process at a fault point, as by kill -9, at hit number `hit`.

        The block ends there. Committed writes remain, and held runs are recovered after a lease. A
        block that never reaches the point fails the test.
        """
        if point not in faultpoints.NAMES:
            hint = nearest(point, faultpoints.NAMES)
            raise BadOption(f"there is no fault point {point!r}; did you mean {hint!r}?")
        hits = 0

        def die() -> None:
            nonlocal hits
            if point == "claim.after_commit" and not self.app.runs.list(state="running", limit=1):
                return  # A test does not mean a claim that took no run.
            hits += 1
            if hits >= hit:
                raise faultpoints.SimulatedCrash(point)

        faultpoints.arm(point, die)
        try:
            yield
        except faultpoints.SimulatedCrash:
            pass
        finally:
            faultpoints.disarm(point)
        if hits < hit:
            raise AssertionError(f"nothing died at {point}: it was reached {hits} of {hit} times")

    def assert_enqueued(
        self, what: Task[..., Any] | Call[Any], *, times: int | None = None
    ) -> list[Run[Any]]:
        """Assert that a task, or this call of it, was enqueued. Return the runs, oldest first.

        `assert_enqueued(send)`, `assert_enqueued(send.call(42, email="a@b.c"), times=1)`.
        """
        found = self._runs_of(what)
        if len(found) == times or (times is None and found):
            return found
        wanted = "at least once" if times is None else f"{times} times"
        raise AssertionError(
            f"{_named(what)} should be enqueued {wanted}, but was enqueued {len(found)} times; "
            f"enqueued: {self._all() or 'no runs'}"
        )

    def refute_enqueued(self, what: Task[..., Any] | Call[Any]) -> None:
        """Assert that a task, or this call of it, was not enqueued."""
        self.assert_enqueued(what, times=0)

    def _runs_of(self, what: Task[..., Any] | Call[Any]) -> list[Run[Any]]:
        name = what.name if isinstance(what, Task) else what.op.task
        found = list(every_run(self.app.runs, Filter(task=name)))
        if isinstance(what, Call):
            found = [run for run in found if run.record.arguments == what.op.arguments]
        return found[::-1]

    def _all(self) -> str:
        page = self.app.runs.list(limit=10)
        return "; ".join(f"{run.record.task} {run.record.arguments}" for run in page)

    def _recover(self) -> None:
        lease = round(self.app.settings.lease * MICROSECONDS)
        over = [dead for dead in self._dead if self.now() - dead.died_at >= lease]
        for dead in over:
            judge = judge_one_slot_run(dead.worker.begun)
            self.app.store.do(Recover(dead.worker.worker_id, judge))
            self._dead.remove(dead)


def _named(what: Task[..., Any] | Call[Any]) -> str:
    return what.name if isinstance(what, Task) else f"{what.op.task} {what.op.arguments}"

"""Steps that go on when their body has ended: its claim is let go of when they have ended too."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from itertools import count

import pytest

import duly
from duly import Duly, Retry, Run, current
from duly.errors import ClaimLost, NoCurrentRun
from duly.steps.children import TaskCall
from duly.store.ops.steps import BeginStep
from duly.worker.embedded_worker import EmbeddedWorker
from duly.worker.inline_worker import InlineWorker
from tests.servers.processes import wait_until
from tests.worker.waits import take_over, wait_until_empty

pytestmark = pytest.mark.surface

AGAIN = Retry(2, base=0)
SOON = 20.0


def looks() -> Iterator[float]:
    """Pause until somebody waits for the step that calls, as its attempt does behind its body.

    If nobody does, it goes on behind its body for a second: the end of that is recorded by then.
    """
    for _ in range(200):
        if current().open_steps._waiting:
            return
        yield 0.005


async def go_on_behind_the_body() -> None:
    """Go on, in a coroutine, until the attempt waits for this step."""
    for pause in looks():
        await asyncio.sleep(pause)


def stay_behind_the_body() -> None:
    """Go on, in a thread, until the attempt waits for this step."""
    for pause in looks():
        threading.Event().wait(pause)


class Charges:
    """Steps that charge somebody, and what was on record of their run when they had."""

    def __init__(self, app: Duly) -> None:
        self._app = app
        self.began = threading.Event()
        self.seen: list[str] = []

    def leave_on_a_loop_that_closes(self) -> None:
        """Begin one on another thread's loop, which is closed when the attempt waits for it."""

        async def charge() -> None:
            self.began.set()
            await asyncio.Event().wait()

        def leave() -> None:
            loop = asyncio.new_event_loop()
            self.kept = loop.create_task(duly.astep("charge", charge))
            loop.run_until_complete(go_on_behind_the_body())
            loop.close()

        threading.Thread(target=copy_context().run, args=(leave,), daemon=True).start()
        self.began.wait(SOON)

    async def soon(self) -> str:
        """Charge behind the end of the body."""
        await go_on_behind_the_body()
        self.note()
        return "paid"

    async def never(self) -> None:
        """Charge until it is broken off, and clean up."""
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await go_on_behind_the_body()
            self.note()

    def in_a_thread(self) -> str:
        """Charge behind the end of the body."""
        self.began.set()
        stay_behind_the_body()
        self.note()
        return "paid"

    def note(self) -> None:
        """Note who holds the run, and at which attempt this was."""
        context = current()
        record = self._app.runs.get(context.run_id).record
        is_ours = (record.state, record.claim_number) == ("running", context.fence)
        self.seen.append(f"{context.attempt}: {'ours' if is_ours else record.state}")


@pytest.fixture
def charges(app: Duly) -> Charges:
    """What charges, in steps of the application's tasks."""
    return Charges(app)


async def fail() -> None:
    """Fail once the steps beside this have begun."""
    await asyncio.sleep(0.01)
    raise OSError("no")


def recorded(run: Run[object]) -> list[tuple[str, bool]]:
    """Return the names of the steps on record, and whether each is done."""
    return [(step.name, step.done) for step in run.steps()]


def outcomes(run: Run[object]) -> list[str]:
    """Return how the attempts of a run ended."""
    return [str(attempt.outcome) for attempt in run.attempts()]


def begin_in_a_thread(*args: object, **kwargs: object) -> None:
    """Begin a step in a thread that has the body's context; that it fails is nobody's matter."""

    def begin() -> None:
        with suppress(OSError):
            duly.step(*args, **kwargs)

    threading.Thread(target=copy_context().run, args=(begin,), daemon=True).start()


def end_a_loop_under_a_thread(app: Duly, began: threading.Event, go_on: threading.Event) -> None:
    """End an application's loop when a thread has begun, and let that go on a little later.

    All tasks of the loop are cancelled, and each could go on before the thread does.
    """

    async def let_it_go_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            go_on.set()

    async def main() -> None:
        app.worker(loop=asyncio.get_running_loop()).start()
        kept.append(asyncio.create_task(let_it_go_on()))
        await asyncio.to_thread(began.wait, SOON)

    kept: list[asyncio.Task[None]] = []
    asyncio.run(main())
    wait_until_workers_have_ended(app)


def wait_until_workers_have_ended(app: Duly) -> None:
    """Wait until a worker that nobody stops has seen that its loop is over."""
    workers = app.workers.list
    wait_until(
        lambda: all(worker.state != "live" for worker in workers()),
        seconds=SOON,
        what="the worker has ended by itself",
    )


class TestBesideAnException:
    """What fails in asyncio.gather leaves its siblings at work; they are on record before it is."""

    @pytest.mark.parametrize("on_crash", ["rerun", "hold"])
    def test_a_step_is_done_once(self, app, charges, on_crash):
        @app.task(name="order", retries=AGAIN)
        async def order() -> str:
            charge = duly.astep("charge", charges.soon, on_crash=on_crash)
            if current().attempt == 2:
                return await charge
            await asyncio.gather(charge, fail())
            return "never"

        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert run.result(timeout=1) == "paid"
        assert charges.seen == ["1: ours"]
        assert outcomes(run) == ["raised", "returned"]

    def test_what_a_transactional_one_writes_is_there_once(self, app, tables):
        def book() -> str:
            current().connection.execute("INSERT INTO once VALUES (1)")
            stay_behind_the_body()
            return "booked"

        @app.task(name="order", retries=AGAIN)
        async def order() -> str:
            booking = duly.astep("book", book, transaction=True)
            if current().attempt == 2:
                return await booking
            await asyncio.gather(booking, fail())
            return "never"

        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert run.result(timeout=1) == "booked"
        assert tables.rows("SELECT number FROM once") == [(1,)]

    @pytest.mark.stores("sqlite")
    def test_a_step_in_a_thread_is_waited_for_too(self, app, charges):
        @app.task(name="order")
        async def order() -> None:
            await asyncio.gather(
                asyncio.to_thread(duly.step, "charge", charges.in_a_thread), fail()
            )

        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert charges.seen == ["1: ours"]
        assert recorded(run) == [("charge", True)]
        assert run.refresh().state == "failed"

    @pytest.mark.stores("sqlite")
    def test_what_lies_in_a_step_may_begin_and_what_comes_after_it_may_not(self, app, charges):
        refused: list[type[BaseException]] = []

        async def outer() -> str:
            await go_on_behind_the_body()
            return await duly.astep("inner", charges.soon)

        async def branch() -> None:
            await duly.astep("outer", outer)
            try:
                await duly.astep("after", charges.soon)
            except BaseException as error:
                refused.append(type(error))
                raise

        @app.task(name="order")
        async def order() -> None:
            await asyncio.gather(branch(), fail())

        run = order.enqueue()
        app.worker().drain(timeout=SOON)
        wait_until(lambda: bool(refused), seconds=SOON, what="the branch has gone on")

        assert refused == [NoCurrentRun]
        assert recorded(run) == [("inner", True), ("outer", True)]

    @pytest.mark.stores("sqlite")
    def test_children_are_enqueued_before_the_attempt_has_ended(self, app, charges):
        @app.task(name="other")
        def other() -> None: ...

        def calls() -> Iterator[TaskCall]:
            charges.in_a_thread()
            yield other.call()

        @app.task(name="order")
        async def order() -> None:
            await asyncio.gather(duly.agather(calls()), fail())

        order.enqueue()
        app.worker().drain(timeout=SOON)

        assert charges.seen == ["1: ours"]


class TestBehindAReturn:
    """A body that does not await what it has started has not ended before that has."""

    def test_a_step_is_on_record_before_the_run_has_succeeded(self, app, charges):
        @app.task(name="order")
        async def order() -> str:
            kept.append(asyncio.create_task(duly.astep("charge", charges.soon)))
            await asyncio.sleep(0.01)
            return "ordered"

        kept: list[asyncio.Task[str]] = []
        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert run.result(timeout=1) == "ordered"
        assert charges.seen == ["1: ours"]
        assert recorded(run) == [("charge", True)]
        (said,) = run.logs()
        assert said.message.endswith("waits for them: charge")

    @pytest.mark.stores("sqlite")
    def test_one_that_had_not_begun_never_does(self, app, charges):
        @app.task(name="order")
        async def order() -> None:
            kept.append(asyncio.create_task(duly.astep("charge", charges.soon)))

        kept: list[asyncio.Task[str]] = []
        run = order.enqueue()
        app.worker().drain(timeout=SOON)
        wait_until(kept[0].done, seconds=SOON, what="it was refused")

        assert "after its task returned" in str(kept[0].exception())
        assert run.refresh().state == "failed"
        assert "astep('charge') without await" in run.attempts()[0].error
        assert recorded(run) == []
        assert charges.seen == []

    def test_one_whose_claim_is_lost_meanwhile_is_not_recorded(self, app, charges):
        go_on, ended = threading.Event(), threading.Event()

        async def charge() -> None:
            charges.began.set()
            await asyncio.to_thread(go_on.wait, SOON)

        @app.task(name="order")
        async def order() -> None:
            kept.append(asyncio.create_task(duly.astep("charge", charge)))
            await asyncio.to_thread(charges.began.wait, SOON)
            ended.set()

        kept: list[asyncio.Task[None]] = []
        run = order.enqueue()
        with app.worker(lease=60, beat=20) as worker:
            assert ended.wait(SOON)
            take_over(app, worker, run.id)
            worker._worker.stop_claiming()
            go_on.set()
            wait_until_empty(worker)

        assert isinstance(kept[0].exception(), ClaimLost)
        assert recorded(run) == []
        assert run.refresh().state == "queued"

    def test_a_held_one_that_vanished_before_interrupts_the_run(self, app, charges):
        @app.task(name="order", timeout=0.1, retries=AGAIN)
        async def order() -> None:
            charge = duly.astep("charge", charges.never, on_crash="hold")
            if current().attempt == 1:
                await charge
            kept.append(asyncio.create_task(charge))
            await asyncio.sleep(0)

        kept: list[asyncio.Task[None]] = []
        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert (run.refresh().state, outcomes(run)[-1]) == ("interrupted", "vanished")


class TestBrokenOff:
    """Whatever ends a body from outside ends its steps, and is recorded when they have ended."""

    @pytest.fixture(params=["at once", "behind the body"])
    def begin(self, request, charges) -> Callable[[], object]:
        """Begin a step that never ends, in a body that goes on, or that has returned."""

        async def begin() -> None:
            kept.append(asyncio.create_task(duly.astep("charge", charges.never)))
            await asyncio.to_thread(charges.began.wait, SOON)
            if request.param == "at once":
                await asyncio.Event().wait()

        kept: list[asyncio.Task[None]] = []
        return begin

    def test_by_a_timeout(self, app, charges, begin):
        @app.task(name="order", timeout=0.4)
        async def order() -> None:
            await begin()

        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert charges.seen == ["1: ours"]
        assert outcomes(run) == ["timed_out"]
        assert recorded(run) == []

    @pytest.mark.stores("sqlite")
    def test_by_a_cancel(self, app, charges, begin):
        @app.task(name="order")
        async def order() -> None:
            await begin()

        run = order.enqueue()
        with app.worker() as worker:
            assert charges.began.wait(SOON)
            run.cancel()
            wait_until_empty(worker)

        assert charges.seen == ["1: ours"]
        assert run.refresh().state == "cancelled"

    @pytest.mark.stores("sqlite")
    def test_by_a_stop(self, app, charges, begin):
        @app.task(name="order")
        async def order() -> None:
            await begin()

        run = order.enqueue()
        with app.worker() as worker:
            assert charges.began.wait(SOON)
            worker.stop(grace=0)

        assert charges.seen == ["1: ours"]
        assert (run.refresh().state, outcomes(run)) == ("queued", ["stopped"])

    @pytest.mark.stores("sqlite")
    def test_though_its_task_has_swallowed_a_cancel_before(self, app, charges):
        async def stubborn() -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await duly.astep("charge", charges.never)

        @app.task(name="order", timeout=0.4)
        async def order() -> None:
            kept.append(asyncio.create_task(stubborn()))
            await asyncio.sleep(0)
            kept[0].cancel()
            await asyncio.to_thread(charges.began.wait, SOON)

        kept: list[asyncio.Task[None]] = []
        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert charges.seen == ["1: ours"]
        assert outcomes(run) == ["timed_out"]

    @pytest.mark.stores("sqlite")
    def test_only_once_however_often_that_is_asked_for(self, app, charges):
        go_on, broken = threading.Event(), []

        async def charge() -> None:
            charges.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                broken.append(1)
                await asyncio.to_thread(go_on.wait, SOON)
                charges.note()

        @app.task(name="order", timeout=0.4)
        async def order() -> None:
            kept.append(asyncio.create_task(duly.astep("charge", charge)))
            await asyncio.to_thread(charges.began.wait, SOON)

        kept: list[asyncio.Task[None]] = []
        run = order.enqueue()
        with app.worker() as worker:
            wait_until(lambda: bool(broken), seconds=SOON, what="the timeout has struck")
            held = worker._worker.inflight.get(run.id)
            run.cancel()
            wait_until(lambda: held.cancel is not None, seconds=SOON, what="it is to end")
            go_on.set()
            wait_until_empty(worker)

        assert charges.seen == ["1: ours"]

    @pytest.mark.stores("sqlite")
    def test_by_the_end_of_the_applications_loop(self, app, charges, begin):
        @app.task(name="order")
        async def order() -> None:
            await begin()

        async def main() -> None:
            app.worker(loop=asyncio.get_running_loop()).start()
            await asyncio.to_thread(charges.began.wait, SOON)

        run = order.enqueue()
        asyncio.run(main())
        wait_until_workers_have_ended(app)

        assert run.refresh().state == "queued"
        assert charges.seen == ["1: ours"]
        assert outcomes(run) == ["stopped"]

    @pytest.mark.stores("sqlite")
    def test_not_by_the_end_of_the_applications_loop_while_a_thread_enqueues_children(
        self, app, charges
    ):
        go_on, was_let = threading.Event(), []

        @app.task(name="other")
        def other() -> None: ...

        def calls() -> Iterator[TaskCall]:
            charges.began.set()
            go_on.wait(SOON)
            charges.note()
            yield other.call()

        @app.task(name="order")
        async def order() -> None:
            try:
                await duly.agather(calls())
            finally:
                was_let.append(go_on.is_set())

        run = order.enqueue()
        end_a_loop_under_a_thread(app, charges.began, go_on)

        assert was_let == [True]
        assert charges.seen == ["1: ours"]
        assert outcomes(run) == ["stopped"]

    @pytest.mark.stores("sqlite")
    def test_one_that_must_not_begin_twice_has_not_begun_if_its_loop_ends_first(
        self, app, charges, monkeypatch
    ):
        go_on = threading.Event()

        def apply(ops: Sequence[object]) -> object:
            answers = store_apply(ops)
            if any(type(op) is BeginStep for op in ops):
                charges.began.set()
                go_on.wait(SOON)
            return answers

        @app.task(name="order")
        async def order() -> str:
            return await duly.astep("charge", charges.soon, on_crash="hold")

        store_apply = app.store.apply
        run = order.enqueue()
        with monkeypatch.context() as patch:
            patch.setattr(app.store, "apply", apply)
            end_a_loop_under_a_thread(app, charges.began, go_on)
        begun = recorded(run)
        app.worker().drain(timeout=SOON)

        assert begun == []
        assert run.result(timeout=1) == "paid"

    @pytest.mark.stores("sqlite")
    @pytest.mark.parametrize("place", ["the body", "a step"])
    def test_not_by_a_loop_that_is_closed_under_a_thread(self, app, charges, place):
        go_on, refused = threading.Event(), []

        def charge() -> None:
            charges.began.set()
            go_on.wait(SOON)
            charges.note()

        def both() -> None:
            duly.step("charge", charge)
            try:
                duly.step("after", charges.note)
            except BaseException as error:
                refused.append(type(error))
                raise

        @app.task(name="order")
        async def order() -> None:
            if place == "a step":
                await duly.astep("around", asyncio.to_thread, both)
            await asyncio.to_thread(both)

        async def main() -> EmbeddedWorker:
            worker = app.worker(loop=loop, beat=0.2, lease=10).start()
            await asyncio.to_thread(charges.began.wait, SOON)
            return worker

        run = order.enqueue()
        loop = asyncio.new_event_loop()
        worker = loop.run_until_complete(main())
        loop.close()
        worker.stop(grace=0)
        state = run.refresh().state
        # Whoever ends a step may hold any lock: it may be the collector that removes a coroutine.
        with worker._worker.inflight._lock:
            go_on.set()
            wait_until(lambda: bool(refused), seconds=SOON, what="the thread has gone on")
        wait_until(lambda: run.refresh().state == "queued", seconds=SOON, what="it is given back")

        assert state == "running"
        assert refused == [NoCurrentRun]
        assert charges.seen == ["1: ours"]
        assert (recorded(run), outcomes(run)) == ([("charge", True)], ["stopped"])
        wait_until(lambda: worker.worker_id is None, seconds=SOON, what="the worker has parted")

    @pytest.mark.stores("sqlite")
    def test_by_the_close_of_the_bodys_loop_though_its_own_goes_on(self, app, charges):
        @app.task(name="order")
        async def order() -> None:
            asyncio.run_coroutine_threadsafe(duly.astep("charge", charges.never), other)
            await asyncio.Event().wait()

        async def main() -> EmbeddedWorker:
            worker = app.worker(loop=loop, beat=0.2, lease=10).start()
            await asyncio.to_thread(charges.began.wait, SOON)
            return worker

        run = order.enqueue()
        other, loop = asyncio.new_event_loop(), asyncio.new_event_loop()
        thread = threading.Thread(target=other.run_forever)
        thread.start()
        worker = loop.run_until_complete(main())
        loop.close()
        worker.stop(grace=0)
        wait_until(lambda: run.refresh().state == "queued", seconds=SOON, what="it is given back")
        wait_until(lambda: worker.worker_id is None, seconds=SOON, what="the worker has parted")
        other.call_soon_threadsafe(other.stop)
        thread.join()
        other.close()

        assert charges.seen == ["1: ours"]
        assert outcomes(run) == ["stopped"]

    @pytest.mark.stores("postgres")  # On SQLite a stop may have to wait for the one writer.
    def test_one_in_a_thread_cannot_be_and_its_claim_is_kept(self, app, charges, tables):
        go_on = threading.Event()

        def book() -> None:
            current().connection.execute("INSERT INTO once VALUES (1)")
            charges.began.set()
            go_on.wait(SOON)

        @app.task(name="order")
        async def order() -> None:
            kept.append(asyncio.create_task(duly.astep("book", book, transaction=True)))
            await asyncio.to_thread(charges.began.wait, SOON)

        kept: list[asyncio.Task[None]] = []
        run = order.enqueue()
        with app.worker() as worker:
            assert charges.began.wait(SOON)
            stopping = threading.Thread(target=worker.stop, kwargs={"grace": 0})
            stopping.start()
            held = worker._worker.inflight.get(run.id)
            wait_until(lambda: held.cancel == "stopped", seconds=SOON, what="it is to stop")
            go_on.set()
            stopping.join()

        assert recorded(run) == [("book", True)]
        assert tables.rows("SELECT number FROM once") == [(1,)]
        assert outcomes(run) == ["stopped"]


class TestThreadsOfPlainFunctions:
    """Whoever starts threads is to join them; the claim is kept for those that are in a step."""

    @pytest.mark.parametrize("end", ["return", "raise", "timeout"])
    def test_a_step_is_on_record_before_the_attempt_has_ended(self, app, charges, end):
        @app.task(name="order", timeout=0.1)
        def order() -> None:
            begin_in_a_thread("charge", charges.in_a_thread)
            assert charges.began.wait(SOON)
            if end == "raise":
                raise OSError("no")
            while end == "timeout":
                threading.Event().wait(0.01)

        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert charges.seen == ["1: ours"]
        assert recorded(run) == [("charge", True)]
        assert outcomes(run) == [
            {"return": "returned", "raise": "raised", "timeout": "timed_out"}[end]
        ]

    def test_the_transaction_of_one_is_its_own_to_the_end(self, app, charges, tables):
        def book() -> None:
            current().connection.execute("INSERT INTO once VALUES (1)")
            charges.began.set()
            stay_behind_the_body()
            raise OSError("no")

        @app.task(name="order")
        def order() -> None:
            begin_in_a_thread("book", book, transaction=True)
            assert charges.began.wait(SOON)

        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert run.refresh().state == "succeeded"
        assert tables.rows("SELECT number FROM once") == []
        assert recorded(run) == []

    @pytest.mark.stores("sqlite")
    def test_none_that_is_come_to_behind_the_body_is_called_gone(self, app, charges):
        def outer() -> None:
            charges.began.set()
            if current().attempt == 2:
                stay_behind_the_body()
            duly.step("inner", str)
            if current().attempt == 1:
                raise OSError("no")

        @app.task(name="order", retries=AGAIN)
        def order() -> None:
            if current().attempt == 1:
                duly.step("outer", outer)
            charges.began.clear()
            begin_in_a_thread("outer", outer)
            assert charges.began.wait(SOON)

        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert recorded(run) == [("inner", True), ("outer", True)]
        (said,) = run.logs()
        assert said.message.endswith("waits for them: outer")

    @pytest.mark.stores("sqlite")
    def test_none_begins_once_the_body_has_ended(self, app, charges):
        ended, refused = threading.Event(), []

        def later() -> None:
            ended.wait(SOON)
            try:
                duly.step("charge", charges.in_a_thread)
            except NoCurrentRun as error:
                refused.append(str(error))

        @app.task(name="order")
        def order() -> None:
            thread = threading.Thread(target=copy_context().run, args=(later,), daemon=True)
            thread.start()
            threads.append(thread)

        threads: list[threading.Thread] = []
        run = order.enqueue()
        app.worker().drain(timeout=SOON)
        ended.set()
        threads[0].join()

        assert len(refused) == 1
        assert "'charge'" in refused[0]
        assert recorded(run) == []


@pytest.mark.stores("sqlite")
class TestLoopsOfPlainFunctions:
    """When a body has ended nobody runs its thread's loops: what stands still keeps no claim."""

    def test_a_step_that_is_left_there_keeps_no_attempt(self, app, charges):
        async def charge() -> None:
            charges.began.set()
            await asyncio.Event().wait()

        @app.task(name="order", timeout=SOON)
        def order() -> str:
            async def main() -> None:
                kept.append(loop.create_task(duly.astep("charge", charge)))
                await asyncio.to_thread(charges.began.wait, SOON)

            loop = asyncio.new_event_loop()
            loops.append(loop)
            loop.run_until_complete(main())
            return "ordered"

        kept: list[asyncio.Task[None]] = []
        loops: list[asyncio.AbstractEventLoop] = []
        run = order.enqueue()
        app.worker().drain(timeout=SOON)
        said = run.logs()
        with suppress(asyncio.CancelledError):  # Whoever runs the loop again does not go on in it.
            loops[0].run_until_complete(kept[0])
        loops[0].close()

        assert run.result(timeout=1) == "ordered"
        assert kept[0].cancelled()
        assert (said, recorded(run)) == ([], [])

    @pytest.mark.parametrize("kind", ["plain", "coroutine"])
    def test_nor_does_one_on_a_loop_that_another_thread_has_closed(self, app, charges, kind):
        async def charge() -> None:
            charges.began.set()
            await asyncio.Event().wait()

        def leave() -> None:
            async def main() -> None:
                kept.append(loop.create_task(duly.astep("charge", charge)))
                await asyncio.to_thread(charges.began.wait, SOON)

            loop = asyncio.new_event_loop()
            loop.run_until_complete(main())
            loop.close()

        def plain() -> str:
            thread = threading.Thread(target=copy_context().run, args=(leave,))
            thread.start()
            thread.join()
            return "ordered"

        async def coroutine() -> str:
            await asyncio.to_thread(leave)
            return "ordered"

        kept: list[asyncio.Task[None]] = []
        order = app.task(name="order")(plain if kind == "plain" else coroutine)
        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert run.result(timeout=1) == "ordered"
        assert (run.logs(), recorded(run)) == ([], [])

    @pytest.mark.parametrize("kind", ["plain", "coroutine"])
    def test_nor_does_one_whose_loop_is_closed_while_the_attempt_waits_for_it(
        self, app, charges, kind
    ):
        def plain() -> str:
            charges.leave_on_a_loop_that_closes()
            return "ordered"

        async def coroutine() -> str:
            return await asyncio.to_thread(plain)

        order = app.task(name="order")(plain if kind == "plain" else coroutine)
        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert run.result(timeout=1) == "ordered"
        assert recorded(run) == []

    def test_nor_a_wait_beside_one(self, app, charges):
        @app.task(name="order")
        async def order() -> str:
            if not charges.began.is_set():
                await asyncio.to_thread(charges.leave_on_a_loop_that_closes)
            await duly.asleep("night", 0.01)
            return "ordered"

        run = order.enqueue()
        app.worker().drain(timeout=SOON)

        assert run.result(timeout=1) == "ordered"

    def test_a_timeout_ends_one_in_the_midst_of_it(self, app):
        async def busy() -> None:
            for _ in count():
                await asyncio.sleep(0.005)

        @app.task(name="order", timeout=0.2)
        def order() -> None:
            loop = asyncio.new_event_loop()
            loops.append(loop)
            loop.run_until_complete(duly.astep("charge", busy))

        loops: list[asyncio.AbstractEventLoop] = []
        run = order.enqueue()
        app.worker().drain(timeout=SOON)
        loops[0].close()

        assert outcomes(run) == ["timed_out"]

    def test_no_thread_begins_a_step_inside_of_one_that_stands_still(self, app, charges):
        ended, refused = threading.Event(), []

        def later() -> None:
            ended.wait(SOON)
            try:
                duly.step("inner", charges.in_a_thread)
            except NoCurrentRun as error:
                refused.append(error)

        async def outer() -> None:
            threads.append(threading.Thread(target=copy_context().run, args=(later,)))
            threads[0].start()
            charges.began.set()
            await asyncio.Event().wait()

        @app.task(name="order")
        def order() -> None:
            async def main() -> None:
                kept.append(loop.create_task(duly.astep("outer", outer)))
                await asyncio.to_thread(charges.began.wait, SOON)

            loop = asyncio.new_event_loop()
            loop.run_until_complete(main())
            loop.close()

        kept: list[asyncio.Task[None]] = []
        threads: list[threading.Thread] = []
        run = order.enqueue()
        app.worker().drain(timeout=SOON)
        ended.set()
        threads[0].join()

        assert len(refused) == 1
        assert recorded(run) == []

    @pytest.mark.parametrize("end", ["return", "wait"])
    def test_a_timeout_breaks_off_one_on_the_loop_of_another_thread(self, app, charges, end):
        @app.task(name="order", timeout=0.4)
        def order() -> None:
            asyncio.run_coroutine_threadsafe(duly.astep("charge", charges.never), loop)
            assert charges.began.wait(SOON)
            while end == "wait":
                threading.Event().wait(0.01)

        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        run = order.enqueue()
        app.worker().drain(timeout=SOON)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

        assert charges.seen == ["1: ours"]
        assert outcomes(run) == ["timed_out"]


@pytest.mark.stores("sqlite")
class TestInTheCallersThread:
    """A worker without threads waits for them, too."""

    @pytest.fixture
    def drain(self, app):
        return InlineWorker(app.store, app.registry, app.bus).drain

    def test_in_coroutines(self, app, charges, drain):
        @app.task(name="order")
        async def order() -> None:
            await asyncio.gather(duly.astep("charge", charges.soon), fail())

        run = order.enqueue()
        drain()

        assert charges.seen == ["1: ours"]
        assert recorded(run) == [("charge", True)]

    def test_in_plain_functions(self, app, charges, drain):
        @app.task(name="order")
        def order() -> None:
            begin_in_a_thread("charge", charges.in_a_thread)
            assert charges.began.wait(SOON)

        run = order.enqueue()
        drain()

        assert charges.seen == ["1: ours"]
        assert recorded(run) == [("charge", True)]

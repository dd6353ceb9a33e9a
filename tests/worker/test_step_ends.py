"""When what a step did cannot be recorded, or is broken off: it has had its effect."""

import asyncio
import threading
from dataclasses import dataclass
from datetime import date

import pytest

import duly
from duly import BadOption, Retry, current, faultpoints
from duly.errors import StepNotResolved, StoreRefused
from duly.store.ops.steps import EndStep

pytestmark = pytest.mark.surface

AGAIN = Retry(2, base=0)


@dataclass
class Receipt:
    """What a step may return."""

    day: date


@pytest.fixture
def charged() -> list[int]:
    """Which attempts have charged somebody."""
    return []


class TestHeldOnes:
    """A step with on_crash="hold" is never begun twice, whatever it ended with."""

    def test_that_were_struck_by_a_timeout(self, app, charged):
        async def charge() -> None:
            charged.append(current().attempt)
            await asyncio.Event().wait()

        @app.task(name="order", timeout=1.0, retries=AGAIN)
        async def order() -> None:
            await duly.astep("charge", charge, on_crash="hold")

        run = order.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "interrupted"
        assert len(charged) == 1

    def test_that_raised_an_error_which_takes_no_note_have_simply_failed(self, app, charged):
        @dataclass(frozen=True)
        class Declined(Exception):
            code: int

        def charge() -> str:
            charged.append(current().attempt)
            if len(charged) == 1:
                raise Declined(51)
            return "paid"

        @app.task(name="order", retries=AGAIN)
        def order() -> str:
            return duly.step("charge", charge, on_crash="hold")

        run = order.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "succeeded"
        assert len(charged) == 2

    def test_that_were_struck_before_their_function_began_may_begin_again(self, app, charged):
        struck = threading.Event()

        async def charge() -> str:
            charged.append(current().attempt)
            return "paid"

        def strike() -> None:
            faultpoints.disarm()
            struck.wait(timeout=10)

        @app.task(name="order", retries=AGAIN)
        async def order() -> str:
            if current().attempt == 2:
                return await duly.astep("charge", charge, on_crash="hold")
            faultpoints.arm("operate.before_write", strike)
            begins = asyncio.ensure_future(duly.astep("charge", charge, on_crash="hold"))
            await asyncio.sleep(0.1)
            begins.cancel()
            await asyncio.sleep(0.1)
            struck.set()
            with pytest.raises(asyncio.CancelledError):
                await begins
            raise OSError("once more")

        run = order.enqueue()
        app.worker().drain(timeout=20)

        assert run.result(timeout=1) == "paid"
        assert charged == [2]

    def test_whose_record_the_store_did_not_take(self, app, charged, monkeypatch):
        apply = app.store.apply

        def refuse_records(ops: list[object]) -> object:
            if any(isinstance(op, EndStep) for op in ops):
                raise StoreRefused("the table of steps is gone")
            return apply(ops)

        monkeypatch.setattr(app.store, "apply", refuse_records)

        def charge() -> None:
            charged.append(current().attempt)

        @app.task(name="order", retries=AGAIN)
        def order() -> None:
            duly.step("charge", charge, on_crash="hold")

        run = order.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "interrupted"
        assert charged == [1]

    def test_whose_result_cannot_be_kept(self, app, charged):
        def charge() -> object:
            charged.append(current().attempt)
            return object()

        @app.task(name="order", retries=AGAIN)
        def order() -> None:
            duly.step("charge", charge, on_crash="hold")

        run = order.enqueue()
        app.worker().drain(timeout=20)
        assert run.refresh().state == "failed"
        with pytest.raises(StepNotResolved, match="step 'charge'"):
            run.retry()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "failed"
        assert charged == [1]

    def test_that_ran_at_once_are_settled_one_by_one(self, app, charged):
        async def charge() -> str:
            charged.append(current().attempt)
            await asyncio.Event().wait()
            return "never"

        @app.task(name="order", timeout=0.5)
        async def order() -> list[str]:
            return await asyncio.gather(
                duly.astep("card", charge, on_crash="hold"),
                duly.astep("gift", charge, on_crash="hold"),
            )

        run = order.enqueue()
        app.worker().drain(timeout=20)
        assert run.refresh().state == "failed"
        with pytest.raises(StepNotResolved, match=r"steps '(card', 'gift|gift', 'card)'"):
            run.retry()

        for wrong in (None, "cash"):
            with pytest.raises(BadOption, match=r"steps (card, gift|gift, card): name the step"):
                run.resolve(done=True, result="paid", step=wrong)
        run.resolve(done=True, result="by card", step="card")
        assert run.state == "failed", "it goes on when the last one is resolved"
        run.resolve(done=True, result="by gift")
        app.worker().drain(timeout=20)

        assert run.result(timeout=1) == ["by card", "by gift"]
        assert charged == [1, 1]

    def test_that_lie_in_one_another_run_again_together(self, app, charged):
        async def nested(*names: str) -> None:
            if names:
                await duly.astep(names[0], nested, *names[1:], on_crash="hold")
            else:
                charged.append(current().generation)
                if len(charged) == 1:
                    await asyncio.Event().wait()

        @app.task(name="order", timeout=0.5, retries=AGAIN)
        async def order() -> None:
            await nested("outer", "inner", "inmost")

        run = order.enqueue()
        app.worker().drain(timeout=20)
        assert run.refresh().state == "interrupted"

        run.resolve(done=False)
        app.worker().drain(timeout=20)

        assert run.refresh().state == "succeeded"
        assert len(charged) == 2

    @pytest.mark.parametrize("wait", ["sleep", "wait_for", "gather"])
    def test_that_would_wait_are_refused(self, app, wait):
        @app.task(name="other")
        def other() -> None: ...

        waits = {
            "sleep": lambda: duly.sleep("night", 60),
            "wait_for": lambda: duly.wait_for("paid"),
            "gather": lambda: duly.gather([other.call()]),
        }

        @app.task(name="order")
        def order() -> None:
            duly.step("charge", lambda: duly.step("inner", waits[wait]), on_crash="hold")

        run = order.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "failed"
        assert "'charge'" in str(run.record.error)
        assert 'on_crash="hold"' in str(run.record.error)
        assert app.runs.list(task=other) == []
        assert run.steps() == []


class TestResults:
    """What steps return is kept, or the step is not done again and again."""

    def test_one_that_cannot_be_kept_is_no_reason_to_try_again(self, app, charged):
        def charge() -> object:
            charged.append(current().attempt)
            return object()

        @app.task(name="order", retries=AGAIN)
        def order() -> None:
            duly.step("charge", charge)

        run = order.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "failed"
        assert "step 'charge'" in str(run.record.error)
        assert charged == [1]

    @pytest.mark.parametrize("transaction", [True, False])
    def test_it_is_told_whether_the_step_was_undone(self, app, transaction):
        @app.task(name="order")
        def order() -> None:
            duly.step("charge", object, transaction=transaction)

        run = order.enqueue()
        app.worker().drain(timeout=20)

        said = "the step was rolled back" if transaction else "the step was executed"
        assert said in str(run.refresh().record.error)

    def test_so_it_is_in_a_task_group(self, app, charged):
        def charge() -> object:
            charged.append(current().attempt)
            return object()

        @app.task(name="order", retries=AGAIN)
        async def order() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(duly.astep("charge", charge))

        run = order.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "failed"
        assert run.record.cause == "unencodable_result"
        assert charged == [1]

    def test_they_may_be_of_the_class_that_the_annotation_names(self, app, charged):
        def charge() -> Receipt:
            charged.append(current().attempt)
            return Receipt(date(2030, 1, 31))

        async def acharge() -> Receipt:
            return charge()

        @app.task(name="order", retries=AGAIN)
        async def order() -> int:
            receipts = [await duly.astep("one", acharge), await duly.astep("two", charge)]
            if current().attempt == 1:
                raise OSError("once more")
            return sum(receipt.day.year for receipt in receipts)

        run = order.enqueue()
        app.worker().drain(timeout=20)

        assert run.result(timeout=1) == 4060
        assert charged == [1, 1]

"""Steps: what runs once over all attempts, and what a run waits for without a worker."""

import asyncio
import threading
from contextlib import suppress

import pytest

import duly
from duly import Duly, Retry, RunFailed, current, faultpoints
from duly.errors import RunNotInterrupted
from duly.store.ops.steps import RecheckWaits
from tests.servers.processes import wait_until
from tests.worker.waits import take_over


def drained(app: Duly, run):
    """Let a worker do all there is, and return how the run stands then."""
    app.worker().drain(timeout=30)
    return run.refresh()


class TestOnce:
    """A step runs once over all attempts."""

    def test_a_step_runs_once_over_all_attempts(self, app):
        calls: list[str] = []

        @app.task(name="order", retries=Retry(2, base=0))
        def order() -> list[object]:
            charged = duly.step("charge", charge, 42, currency="EUR")
            nothing = duly.step("notify", calls.append, "notify")
            if current().attempt < 3:
                raise OSError("once more")
            return [charged, nothing]

        def charge(amount: int, currency: str) -> dict[str, object]:
            calls.append("charge")
            return {"amount": amount, "in": (currency,)}

        run = drained(app, order.enqueue())

        assert run.result(timeout=1) == [{"amount": 42, "in": ("EUR",)}, None]
        assert calls == ["charge", "notify"]
        assert [(step.name, step.kind, step.done) for step in run.steps()] == [
            ("charge", "step", True),
            ("notify", "step", True),
        ]

    def test_so_it_is_in_coroutines(self, app):
        calls: list[str] = []

        @app.task(name="order", retries=Retry(1, base=0))
        async def order() -> int:
            charged = await duly.astep("charge", charge, 42)
            plain = await duly.astep("plain", len, "abc")
            if current().attempt < 2:
                raise OSError("once more")
            return charged + plain

        async def charge(amount: int) -> int:
            await asyncio.sleep(0)
            calls.append("charge")
            return amount

        assert drained(app, order.enqueue()).result(timeout=1) == 45
        assert calls == ["charge"]

    def test_a_step_that_raises_is_not_on_record(self, app):
        calls: list[int] = []

        @app.task(name="order", retries=Retry(1, base=0))
        def order() -> int:
            return duly.step("charge", charge)

        def charge() -> int:
            calls.append(1)
            if len(calls) == 1:
                raise OSError("not yet")
            return 7

        assert drained(app, order.enqueue()).result(timeout=1) == 7
        assert len(calls) == 2

    def test_steps_survive_a_redrive(self, app):
        calls: list[str] = []

        @app.task(name="order")
        def order() -> str:
            duly.step("charge", calls.append, "charge")
            if current().generation == 1:
                raise OSError("no")
            return "shipped"

        run = drained(app, order.enqueue())
        assert run.state == "failed"
        run.retry()

        assert drained(app, run).result(timeout=1) == "shipped"
        assert calls == ["charge"]

    def test_a_lost_claim_records_nothing(self, app):
        begun, go_on = threading.Event(), threading.Event()

        @app.task(name="order")
        def order() -> None:
            if current().fence == 1:
                duly.step("charge", wait)
            else:
                duly.step("charge", lambda: "second")

        def wait() -> str:
            begun.set()
            go_on.wait(30)
            return "first"

        run = order.enqueue()
        worker = app.worker(beat=3600, lease=14400)
        with worker:
            assert begun.wait(20)
            take_over(app, worker, run.id)
            go_on.set()

        assert drained(app, run).state == "succeeded"
        assert [step.result for step in run.steps()] == ['"second"']

    def test_two_steps_of_one_name_are_refused(self, app):
        @app.task(name="order")
        def order() -> None:
            duly.step("charge", int)
            duly.step("charge", int)

        run = drained(app, order.enqueue())

        assert run.state == "failed"
        assert "give every step its own name" in (run.record.error or "")

    def test_a_step_that_the_code_no_longer_has_is_told(self, app):
        has_it = [True]

        @app.task(name="order", retries=Retry(1, base=0))
        def order() -> None:
            if has_it.pop():
                has_it.append(False)
                duly.step("charge", int)
                raise OSError("no")
            duly.step("other", int)

        run = drained(app, order.enqueue())

        assert run.state == "succeeded"
        assert any("charge" in line.message for line in run.logs())

    def test_a_name_that_means_something_else_now_is_refused(self, app):
        @app.task(name="order", retries=Retry(1, base=0))
        def order() -> None:
            if current().attempt == 1:
                duly.step("pause", int)
                raise OSError("no")
            duly.sleep("pause", 1)

        run = drained(app, order.enqueue())

        assert run.state == "failed"
        assert "is recorded as a step" in (run.record.error or "")

    def test_a_coroutine_needs_to_be_awaited(self, app):
        @app.task(name="order")
        def order() -> None:
            duly.step("charge", asyncio.sleep, 0)

        run = drained(app, order.enqueue())

        assert "astep" in (run.record.error or "")


class TestEffectKeys:
    """Keys for outside APIs."""

    def test_they_are_equal_over_attempts_and_redrives_and_differ_by_step_and_run(self, app):
        keys: list[tuple[str, str]] = []

        @app.task(name="order", retries=Retry(1, base=0))
        def order() -> None:
            keys.append((current().effect_key("charge"), current().effect_key("mail")))
            raise OSError("no")

        run = drained(app, order.enqueue())
        run.retry()
        drained(app, run)
        drained(app, order.enqueue())

        assert len({charge for charge, _ in keys[:4]}) == 1
        assert len(set(keys)) == 2
        assert not {charge for charge, _ in keys} & {mail for _, mail in keys}

    def test_a_redrive_may_ask_for_fresh_ones(self, app):
        keys: list[str] = []

        @app.task(name="order")
        def order() -> None:
            keys.append(current().effect_key("charge"))
            raise OSError("no")

        run = drained(app, order.enqueue())
        for _ in range(2):
            run.retry(fresh_effects=True)
            drained(app, run)

        assert len(set(keys)) == 3


class TestTransactions:
    """A step may have a transaction of its own, or a part in another."""

    def test_what_a_step_writes_and_its_record_are_one_commit(self, app, tables):
        @app.task(name="order", retries=Retry(1, base=0))
        def order() -> None:
            duly.step("book", book, transaction=True)
            if current().attempt == 1:
                raise OSError("no")

        def book() -> None:
            current().connection.execute("INSERT INTO once VALUES (1)")

        run = drained(app, order.enqueue())

        assert run.state == "succeeded"
        assert tables.rows("SELECT number FROM once") == [(1,)]

    def test_a_step_that_raises_leaves_nothing_behind(self, app, tables):
        @app.task(name="order")
        def order() -> None:
            duly.step("book", book, transaction=True)

        def book() -> None:
            current().connection.execute("INSERT INTO once VALUES (1)")
            raise OSError("no")

        run = drained(app, order.enqueue())

        assert run.state == "failed"
        assert tables.rows("SELECT number FROM once") == []
        assert run.steps() == []

    def test_inside_the_bodys_own_transaction_a_step_is_a_part_of_it(self, app, tables):
        @app.task(name="order", transaction=True, retries=Retry(1, base=0))
        def order() -> None:
            current().connection.execute("INSERT INTO once VALUES (1)")
            duly.step("book", int)
            if current().attempt == 1:
                raise OSError("no")

        run = drained(app, order.enqueue())

        assert run.state == "succeeded"
        assert tables.rows("SELECT number FROM once") == [(1,)]
        assert [(step.name, step.claim_number) for step in run.steps()] == [("book", 2)]

    @pytest.mark.parametrize("point", ["transaction.before_settle", "transaction.before_commit"])
    def test_a_failure_at_its_end_leaves_nothing_behind(self, app, tables, point):
        @app.task(name="order", retries=Retry(1, base=0))
        def order() -> None:
            duly.step("book", book, transaction=True)

        def book() -> None:
            if current().attempt == 1:
                faultpoints.arm(point, fail)
            current().connection.execute("INSERT INTO once VALUES (1)")

        def fail() -> None:
            faultpoints.disarm()
            raise OSError("struck")

        run = drained(app, order.enqueue())

        assert run.state == "succeeded"
        assert tables.rows("SELECT number FROM once") == [(1,)]


class TestTransactionsOfCoroutines:
    """In coroutines such a step is a plain function, which has a thread for itself."""

    def test_what_it_writes_and_its_record_are_one_commit(self, app, tables):
        @app.task(name="other")
        def other() -> None: ...

        @app.task(name="order", retries=Retry(2, base=0))
        async def order() -> int:
            number = await duly.astep("book", book, current().attempt, transaction=True)
            if current().attempt == 2:
                raise OSError("no")
            return number

        def book(number: int) -> int:
            current().connection.execute(f"INSERT INTO once VALUES ({number})")  # noqa: S608
            other.enqueue()
            if number == 1:
                raise OSError("no")
            return number

        run = drained(app, order.enqueue())

        assert run.result() == 2
        assert tables.rows("SELECT number FROM once") == [(2,)]
        assert len(app.runs.list(task=other)) == 1
        assert [(step.name, step.claim_number) for step in run.steps()] == [("book", 2)]

    def test_the_rest_of_the_body_goes_on_and_has_no_part_in_it(self, app, tables):
        @app.task(name="other")
        def other() -> None: ...

        @app.task(name="order")
        async def order() -> list[str]:
            booked, noted = await asyncio.gather(
                duly.astep("book", book, transaction=True), note(), return_exceptions=True
            )
            return [type(booked).__name__, noted]

        def book() -> None:
            current().connection.execute("INSERT INTO once VALUES (1)")
            begun.set()
            assert go_on.wait(20)
            raise OSError("no")

        async def note() -> str:
            assert await asyncio.to_thread(begun.wait, 20)
            enqueueing = asyncio.ensure_future(other.aenqueue())
            await asyncio.sleep(0.05)
            go_on.set()
            return (await enqueueing).id

        begun, go_on = threading.Event(), threading.Event()
        run = drained(app, order.enqueue())

        error, noted = run.result()
        assert error == "OSError"
        assert [found.id for found in app.runs.list(task=other)] == [noted]
        assert tables.rows("SELECT number FROM once") == []

    def test_a_cancel_comes_when_it_has_ended(self, app, tables):
        @app.task(name="order")
        async def order() -> None:
            step = asyncio.ensure_future(duly.astep("book", book, transaction=True))
            assert await asyncio.to_thread(begun.wait, 20)
            step.cancel()
            await asyncio.sleep(0.02)
            step.cancel()
            go_on.set()
            with suppress(asyncio.CancelledError):
                await step

        def book() -> None:
            current().connection.execute("INSERT INTO once VALUES (1)")
            begun.set()
            assert go_on.wait(20)

        begun, go_on = threading.Event(), threading.Event()
        run = drained(app, order.enqueue())

        assert run.state == "succeeded"
        assert tables.rows("SELECT number FROM once") == [(1,)]
        assert [step.name for step in run.steps()] == ["book"]

    def test_a_coroutine_function_is_refused(self, app):
        @app.task(name="pay")
        async def pay() -> None:
            await duly.astep("charge", asyncio.sleep, 0, transaction=True)

        run = drained(app, pay.enqueue())

        assert "plain function" in (run.record.error or "")
        assert run.steps() == []

    def test_on_the_loop_itself_nothing_waits(self, app):
        @app.task(name="pay")
        async def pay() -> None:
            duly.step("charge", int, transaction=True)

        run = drained(app, pay.enqueue())

        assert "astep" in (run.record.error or "")
        assert run.steps() == []


class TestHold:
    """A step that must not begin twice."""

    def test_an_attempt_that_vanished_in_it_waits_for_a_person(self, app):
        run, calls = self._interrupted(app)

        assert run.state == "interrupted"
        assert "'charge'" in (run.record.error or "")
        assert calls == [1]

    @pytest.mark.parametrize(("done", "answer"), [(True, "paid"), (False, "charged")])
    def test_a_person_says_what_became_of_it(self, app, done, answer):
        run, calls = self._interrupted(app)

        run.resolve(done=done, result="paid" if done else None, actor="me", reason="looked it up")

        assert drained(app, run).result(timeout=1) == answer
        assert len(calls) == (1 if done else 2)
        acts = [(act.act, act.actor) for act in app.store.list_audit_entries(run.id, 10)]
        assert ("call step charge done" if done else "run step charge again", "me") in acts

    def test_one_that_raised_may_begin_again(self, app):
        calls: list[int] = []

        @app.task(name="order", retries=Retry(1, base=0))
        def order() -> int:
            return duly.step("charge", charge, on_crash="hold")

        def charge() -> int:
            calls.append(1)
            if len(calls) == 1:
                raise OSError("refused")
            return 7

        assert drained(app, order.enqueue()).result(timeout=1) == 7

    def test_only_what_was_interrupted_in_a_step_can_be_resolved(self, app):
        @app.task(name="order")
        def order() -> None: ...

        run = drained(app, order.enqueue())

        with pytest.raises(RunNotInterrupted):
            run.resolve(done=True)

    def _interrupted(self, app):
        begun, go_on = threading.Event(), threading.Event()
        calls: list[int] = []

        @app.task(name="order")
        def order() -> str:
            return duly.step("charge", charge, on_crash="hold")

        def charge() -> str:
            calls.append(1)
            if len(calls) == 1:
                begun.set()
                go_on.wait(30)
            return "charged"

        run = order.enqueue()
        worker = app.worker(beat=3600, lease=14400)
        with worker:
            assert begun.wait(20)
            take_over(app, worker, run.id)
            go_on.set()
        return drained(app, run), calls


class TestSleep:
    """A run that sleeps is in nobody's way."""

    def test_a_sleeping_run_needs_no_worker_and_costs_no_attempt(self, app):
        calls: list[str] = []

        @app.task(name="order")
        def order() -> int:
            duly.step("charge", calls.append, "charge")
            duly.sleep("cool-off", 0.3)
            return current().attempt

        run = order.enqueue()
        worker = app.worker()
        with worker:
            assert run.result(timeout=20) == 1

        assert calls == ["charge"]
        assert [step.kind for step in run.steps()] == ["step", "sleep"]
        assert [attempt.outcome for attempt in run.attempts()] == ["suspended", "returned"]

    def test_coroutines_sleep_too(self, app):
        @app.task(name="order")
        async def order() -> int:
            await duly.asleep("cool-off", 0.1)
            return current().attempt

        with app.worker():
            assert order.enqueue().result(timeout=20) == 1

    def test_it_can_be_cancelled_in_its_sleep(self, app):
        @app.task(name="order")
        def order() -> None:
            duly.sleep("long", 3600)

        run = drained(app, order.enqueue())

        assert run.state == "queued"
        assert run.cancel() == "cancelled"

    @pytest.mark.parametrize(
        ("seconds", "words"),
        [
            (-1, "from 0 to"),
            ("soon", "a number of seconds or a timedelta"),
            (True, "a number of seconds or a timedelta"),
            (float("nan"), "from 0 to"),
            (1e12, "from 0 to"),
        ],
    )
    def test_a_sleep_of_no_valid_length_is_refused(self, app, seconds, words):
        @app.task(name="order")
        def order() -> None:
            duly.sleep("long", seconds)

        assert words in (drained(app, order.enqueue()).record.error or "")


class TestEvents:
    """A run may wait for what somebody says."""

    def test_a_run_goes_on_when_its_event_comes(self, app):
        @app.task(name="order")
        def order() -> object:
            return duly.wait_for("paid")

        run = drained(app, order.enqueue())
        assert run.state == "queued"
        assert app.send_event("paid", {"amount": 42})

        assert drained(app, run).result(timeout=1) == {"amount": 42}
        assert len(run.attempts()) == 2

    def test_one_that_is_there_already_is_not_waited_for(self, app):
        @app.task(name="order")
        async def order() -> object:
            return await duly.await_for("paid")

        app.send_event("paid", 1)
        run = drained(app, order.enqueue())

        assert run.result(timeout=1) == 1
        assert len(run.attempts()) == 1

    def test_the_first_word_counts(self, app):
        assert app.send_event("paid", 1)
        assert not asyncio.run(app.asend_event("paid", 2))

        @app.task(name="order")
        def order() -> object:
            return duly.wait_for("paid")

        assert drained(app, order.enqueue()).result(timeout=1) == 1

    def test_one_that_does_not_come_in_time(self, app):
        @app.task(name="order")
        def order() -> str:
            try:
                duly.wait_for("paid", timeout=0.2)
            except TimeoutError:
                return "too late"
            return "paid"

        with app.worker():
            run = order.enqueue()
            assert run.result(timeout=20) == "too late"

    def test_a_worker_that_is_idle_is_told(self, app):
        @app.task(name="order")
        def order() -> object:
            return duly.wait_for("paid")

        with app.worker():
            run = order.enqueue()
            _until(lambda: run.refresh().state == "queued" and run.steps() != [])
            app.send_event("paid", 7)
            assert run.result(timeout=3) == 7


def _until(condition) -> None:
    wait_until(condition, seconds=20, what="it comes so far")


class TestGather:
    """A run may wait for others that it has enqueued."""

    def test_it_fans_out_and_goes_on_when_all_have_ended(self, app):
        @app.task(name="square")
        def square(number: int) -> int:
            return number * number

        @app.task(name="total")
        def total(count: int) -> int:
            found = duly.gather(square.call(number) for number in range(count))
            return sum(found)

        run = total.enqueue(10)
        with app.worker():
            assert run.result(timeout=20) == 285

        assert len(app.runs.list(task=square)) == 10
        assert current_children(app, run) == 10

    def test_a_child_that_failed_fails_it(self, app):
        @app.task(name="square")
        def square(number: int) -> int:
            raise OSError(str(number))

        @app.task(name="total")
        async def total() -> list[int]:
            return await duly.agather([square.call(1)])

        run = total.enqueue()
        with app.worker(), pytest.raises(RunFailed, match="RunFailed"):
            run.result(timeout=20)

    def test_none_at_all_is_no_wait(self, app):
        @app.task(name="total")
        def total() -> list[int]:
            return duly.gather([])

        assert drained(app, total.enqueue()).result(timeout=1) == []

    def test_children_are_enqueued_once_however_often_it_is_tried(self, app):
        @app.task(name="square")
        def square(number: int) -> int:
            return number * number

        @app.task(name="total", retries=Retry(1, base=0))
        def total() -> list[int]:
            if current().attempt == 1:
                faultpoints.arm("operate.before_write", fail)
            return duly.gather(square.call(number) for number in range(3))

        def fail() -> None:
            faultpoints.disarm()
            raise OSError("struck between the children and their record")

        run = total.enqueue()
        with app.worker():
            assert run.result(timeout=20) == [0, 1, 4]

        assert len(app.runs.list(task=square)) == 3

    def test_children_with_transactions_wake_it_like_any_other(self, app):
        @app.task(name="square", transaction=True)
        def square(number: int) -> int:
            current().connection.execute("SELECT 1")
            return number * number

        @app.task(name="total")
        def total() -> list[int]:
            return duly.gather([square.call(2), square.call(3)])

        with app.worker(recheck=3600):
            # The first look at all that wait comes with the worker, and must not help the second.
            found = [total.enqueue().result(timeout=10) for _ in range(2)]

        assert found == [[4, 9]] * 2

    def test_a_wake_up_that_was_lost_is_made_up_for(self, app):
        @app.task(name="square")
        def square(number: int) -> int:
            return number * number

        @app.task(name="total")
        def total() -> list[int]:
            return duly.gather([square.call(3)])

        run = drained(app, total.enqueue())
        (child,) = app.runs.list(task=square)
        if child.state == "queued":
            child.cancel()  # Nobody rouses its parent.
        found = app.store.do(RecheckWaits("", 100))

        assert found.after == ""
        assert drained(app, run).is_final


def current_children(app: Duly, run) -> int:
    return len(app.runs.list(tag=("duly.parent", run.id), limit=50))

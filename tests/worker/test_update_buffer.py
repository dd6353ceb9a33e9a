"""What a body says about itself: progress within a second, logs in order, all of it fenced."""

import asyncio
import logging
import threading
from typing import Any

import pytest

from duly import BadOption, Duly, Retry, RetryAfter, current, step
from duly.clock import monotonic
from duly.limits import LOG_LINES_PER_ATTEMPT, LOG_MESSAGE_CHARACTERS
from duly.store.ops.updates import AddLogs, RunUpdate, SetProgress
from duly.store.refusal import ValueRefused
from duly.worker.update_buffer import UpdateBuffer
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import enqueue_and_claim, register
from tests.worker.application_table import write
from tests.worker.waits import take_over, wait_until_empty

pytestmark = pytest.mark.surface


@pytest.fixture
def go_on() -> threading.Event:
    """Lets the body end."""
    return threading.Event()


@pytest.mark.timing
def test_progress_is_seen_within_a_second(app: Duly, go_on):
    said: list[float] = []

    @app.task(name="body")
    def body() -> None:
        current().progress(0.25, "a quarter")
        said.append(monotonic())
        go_on.wait(30)

    with app.worker():
        run = body.enqueue()
        wait_until(lambda: said != [], seconds=20, what="the body speaks")
        wait_until(lambda: run.refresh().record.progress is not None, seconds=20, what="it is seen")
        seen_after = monotonic() - said[0]
        go_on.set()

        assert (run.record.progress, run.record.progress_text) == (0.25, "a quarter")
        assert seen_after < 1.0
        run.result(timeout=20)


def test_the_latest_progress_counts(app, go_on):
    @app.task(name="body")
    async def body() -> None:
        for number in range(100):
            current().progress(number / 100, f"step {number}")
        await asyncio.to_thread(go_on.wait, 30)

    with app.worker():
        run = body.enqueue()
        wait_until(lambda: run.refresh().record.progress is not None, seconds=20, what="it is seen")
        assert (run.record.progress, run.record.progress_text) == (0.99, "step 99")
        go_on.set()
        run.result(timeout=20)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf")])
def test_progress_outside_its_bounds_is_the_bodys_own_error(app, fraction):
    caught = []

    @app.task(name="body")
    def body() -> None:
        try:
            current().progress(fraction)
        except BadOption as error:
            caught.append(str(error))

    run = body.enqueue()
    app.worker().drain(timeout=20)

    assert run.refresh().state == "succeeded"
    assert "from 0 to 1" in caught[0]


def test_a_new_attempt_begins_without_progress(app, go_on):
    entered = threading.Event()

    @app.task(name="body", retries=Retry(1))
    def body() -> None:
        if current().attempt == 1:
            current().progress(0.9, "nearly")
            raise RetryAfter(0)
        entered.set()
        go_on.wait(30)

    with app.worker():
        run = body.enqueue()
        assert entered.wait(20)
        record = run.refresh().record
        go_on.set()

        assert (record.attempt, record.progress, record.progress_text) == (2, None, None)


def test_lines_are_kept_in_their_order_with_level_and_attempt(app):
    @app.task(name="body", retries=Retry(1))
    def body() -> None:
        log = current().log
        for number in range(50):
            log.info("line %s of attempt %s", number, current().attempt)
        log.debug("d")
        log.warning("100% sure")
        log.error("e")
        if current().attempt == 1:
            raise RetryAfter(0)

    with app.worker():
        run = body.enqueue()
        run.result(timeout=20)

    lines = run.logs()
    for attempt in (1, 2):
        own = [line for line in lines if line.claim_number == attempt]
        expected = [f"line {number} of attempt {attempt}" for number in range(50)]
        assert [line.message for line in own] == [*expected, "d", "100% sure", "e"]
        assert [line.level for line in own][-4:] == ["info", "debug", "warning", "error"]
        assert [line.at for line in own] == sorted(line.at for line in own)
    assert [line.claim_number for line in lines] == sorted(line.claim_number for line in lines)


def test_lines_can_be_read_while_the_body_runs(app, go_on):
    @app.task(name="body")
    def body() -> None:
        current().log.info("begun")
        go_on.wait(30)
        current().log.info("ending")

    with app.worker():
        run = body.enqueue()
        wait_until(lambda: run.logs() != [], seconds=20, what="the first line")
        assert [line.message for line in run.logs()] == ["begun"]
        go_on.set()
        run.result(timeout=20)

    assert [line.message for line in run.logs()] == ["begun", "ending"]


def test_lines_reach_the_applications_own_logging_too(app, caplog):
    @app.task(name="body")
    def body() -> None:
        current().log.warning("watch %s", "out")

    with caplog.at_level(logging.INFO, logger="duly.run"):
        run = body.enqueue()
        app.worker().drain(timeout=20)

    assert f"{run.id}: watch out" in caplog.messages


def test_lines_that_no_database_takes_are_kept_as_well_as_can_be(app):
    @app.task(name="body")
    def body() -> None:
        current().log.info("nul \0 and lone \ud800")
        current().log.info("x" * (LOG_MESSAGE_CHARACTERS + 100))
        current().progress(0.5, "nul \0 and lone \udfff" + "y" * 1000)

    run = body.enqueue()
    app.worker().drain(timeout=20)

    first, second = run.logs()
    assert run.refresh().state == "succeeded"
    assert first.message == "nul \ufffd and lone \ufffd"
    assert len(second.message) == LOG_MESSAGE_CHARACTERS


@pytest.mark.stores("sqlite-wal", "postgres")
def test_a_body_that_never_stops_talking_is_bounded(app):
    @app.task(name="body")
    def body() -> None:
        for number in range(LOG_LINES_PER_ATTEMPT + 500):
            current().log.debug("%s", number)

    run = body.enqueue()
    app.worker().drain(timeout=40)

    lines = run.logs(limit=LOG_LINES_PER_ATTEMPT + 1000)
    assert len(lines) == LOG_LINES_PER_ATTEMPT
    assert "the rest is omitted" in lines[-1].message


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("how", ["transaction", "block", "step"])
def test_lines_of_a_body_with_a_transaction_are_kept(app, how):
    """Nobody else can write on SQLite meanwhile, and the run's end must not overtake them."""
    journals = []

    def talk() -> None:
        write()
        current().log.info("inside")
        journals.append(current()._port)
        writing = threading.Thread(target=journals[-1].tick)
        writing.start()
        writing.join(0.3)

    @app.task(name="pay", transaction=how == "transaction")
    def pay() -> None:
        current().log.info("before")
        if how == "step":
            step("talk", talk, transaction=True)
        elif how == "block":
            with current().transaction():
                talk()
        else:
            talk()
        current().log.info("behind")

    run = pay.enqueue()
    app.worker().drain(timeout=20)

    assert run.result(timeout=5) is None
    assert [line.message for line in run.logs()] == ["before", "inside", "behind"]
    assert journals[0].is_quiet()


@pytest.mark.usefixtures("tables")
def test_lines_of_a_transaction_that_was_rolled_back_are_kept_too(app):
    @app.task(name="pay", transaction=True)
    def pay() -> None:
        write()
        current().log.info("inside")
        raise ValueError

    run = pay.enqueue()
    app.worker().drain(timeout=20)

    assert [line.message for line in run.logs()] == ["inside"]


def test_a_zombies_words_are_dropped(app, go_on):
    entered, heard = threading.Event(), threading.Event()

    @app.task(name="body")
    def body() -> None:
        entered.set()
        go_on.wait(30)
        current().log.info("from the grave")
        current().progress(0.99)
        heard.set()

    with app.worker(lease=60, beat=20, grace=5) as worker:
        run = body.enqueue()
        assert entered.wait(20)
        take_over(app, worker, run.id)
        go_on.set()
        assert heard.wait(20)
        wait_until_empty(worker)

        assert run.logs() == []
        assert run.refresh().record.progress is None
        assert (run.state, run.record.attempt) == ("queued", 2)


def test_an_update_that_the_store_refuses_takes_no_other_with_it(app):
    register(app.store)
    spoken, refused, silent = claims = [enqueue_and_claim(app.store) for _ in range(3)]
    buffer = UpdateBuffer(RefusingStore(app.store, refused.run_id), lambda _claim: False)
    for claim in claims:
        buffer.log(claim, "info", "hello")
    buffer.progress(silent, 0.5, None)

    with pytest.raises(ValueRefused):
        buffer.tick()

    for claim in (spoken, silent):
        assert [line.message for line in app.store.list_logs(claim.run_id, 10)] == ["hello"]
    assert app.store.get_run(silent.run_id).progress == 0.5
    assert buffer.is_quiet()


class RefusingStore:
    """Writes updates, unless one of a call is about a certain run."""

    def __init__(self, store: Any, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def apply(self, ops: list[RunUpdate]) -> list[bool]:
        """Carry out the ops of a call, or none of them."""
        if any(op.run_id == self._run_id for op in ops):
            raise ValueRefused("a trigger refuses this row")
        answers: list[bool] = self._store.apply(ops)
        return answers


def test_what_is_not_claimed_cannot_speak(app):
    @app.task(name="body")
    def body() -> None: ...

    run = body.enqueue()

    answers = app.store.apply(
        [SetProgress(run.id, 1, 0.5, "x"), AddLogs(run.id, 1, ((0, "info", "x"),))]
    )

    assert answers == [False, False]
    assert run.logs() == []

"""Recording ends while the store fails, comes back, or calls this worker dead."""

import threading
from typing import Any

import pytest

from duly import Duly, StoreUnavailable
from duly.clock import monotonic, new_id
from duly.context import RunContext
from duly.core.outcome import ErrorText, Raised, Returned, Snoozed
from duly.errors import StoreFull, StoreReadOnly
from duly.events import AttemptEnded, ResultDropped, StoreFailed
from duly.limits import RESULT_BYTES
from duly.store.ops.operators import Cancel
from duly.store.ops.recovery import Recover
from duly.store.ops.runs import ClaimRuns, Settle, Want
from duly.store.ops.updates import AddLogs
from duly.store.ops.upkeep import RegisterWorker
from duly.store.refusal import ValueRefused
from duly.task import Task
from duly.worker import settle_ops
from duly.worker import settler as settler_module
from duly.worker.ended_body import EndedBody
from duly.worker.inflight import LOOP, THREAD, InFlightClaims
from duly.worker.settler import Settler
from duly.worker.start_marks import StartMarks
from duly.worker.update_buffer import UpdateBuffer
from tests.store.conformance.verbs import lost
from tests.store.separate_commits import SeparateCommits
from tests.worker.claims import definition

pytestmark = pytest.mark.surface

BOOM = Raised(ErrorText("ValueError", "boom", "", "print"), retryable=True)


class Faulty:
    """A real store whose `apply` fails as a test says."""

    def __init__(self, store: Any) -> None:
        self.inner = store
        self.errors: list[Exception] = []
        self.refuse = lambda _op: None
        self.applied: list[int] = []
        self.commits_words_apart = False
        """As on PostgreSQL, where they are written before the ends of the same call."""

    def apply(self, ops):
        if self.errors:
            raise self.errors.pop(0)
        for op in ops:
            error = self.refuse(op)
            if error is not None:
                if self.commits_words_apart:
                    self.inner.apply([each for each in ops if isinstance(each, AddLogs)])
                raise error
        self.applied.append(len(ops))
        return self.inner.apply(ops)

    def do(self, op):
        return self.apply([op])[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Bench:
    """A settler on a real store, with a worker that has claimed runs."""

    def __init__(self, app: Duly, folder) -> None:
        self.app = app
        self.store = Faulty(app.store)
        self.slots = StartMarks(folder / "w.slots", create=100)
        self.slots.deadline = monotonic() + 1000
        self.inflight = InFlightClaims(self.slots, {LOOP: 50, THREAD: 50}, 50)
        self.journal = UpdateBuffer(self.store, lambda _claim: False)
        self.events: list[Any] = []
        app.bus.subscribe(self.events.append)
        self.gone = False
        self.settler = Settler(
            self.store, self.inflight, self.slots, self.journal, app.bus, lambda: self.gone
        )
        self.worker_id = new_id()
        app.store.do(RegisterWorker(self.worker_id, "host", 1, 15.0, "[]", '["task"]'))
        self.task = definition()
        app.registry.add(self.task)

    def started(self, count: int = 1):
        """Enqueue, claim and start that many runs."""
        self.app.enqueue_many(Task(self.app, self.task).call() for _ in range(count))
        op = ClaimRuns(self.worker_id, (Want(None, "thread", count),), ("task",))
        claims = self.app.store.do(op)
        taken = self.inflight.take((claim, self.task) for claim in claims)
        for held in taken:
            assert self.inflight.begin(held)
            self.inflight.end(held, 0.1)
        return taken

    def commit_separately(self) -> SeparateCommits:
        """Commit each op separately, and fail in the middle of the next call with several ops."""
        self.store.inner = separate = SeparateCommits(self.store.inner, rate=1.0, most=1)
        return separate

    def settle_in_transaction(self, item: EndedBody) -> None:
        """Record an end, with what the body said before, in a transaction of its own."""
        transaction = self.app.store.task_transaction()
        assert transaction.connection is not None
        words = self.journal.final_updates(item.held.claim.run_id)
        transaction.settle_and_commit(settle_ops.settle_op(item), words)

    def states(self, taken) -> list[str]:
        """Return how the runs stand in the store."""
        return [str(self.app.runs.get(held.claim.run_id).state) for held in taken]


@pytest.fixture
def bench(app, tmp_path, monkeypatch):
    """A settler whose pauses take no time."""
    monkeypatch.setattr(settler_module, "_sleep", lambda _seconds: None)
    bench = Bench(app, tmp_path)
    yield bench
    bench.slots.close()


def ended(taken, outcome=Returned("1")) -> list[EndedBody]:  # noqa: B008 - a value
    """Report all as ended alike."""
    return [EndedBody(held, outcome, 0.1) for held in taken]


def test_a_batch_is_recorded_in_one_write(bench):
    taken = bench.started(5)

    bench.settler.settle(ended(taken))

    assert bench.states(taken) == ["succeeded"] * 5
    assert bench.store.applied == [5]
    assert bench.inflight.is_empty()
    assert list(bench.slots.marks()) == []


def test_large_results_are_recorded_in_several_writes(bench):
    taken = bench.started(20)
    bench.settler.report(ended(taken, Returned('"' + "x" * (RESULT_BYTES - 2) + '"')))

    bench.settler.start()
    bench.settler.stop()

    assert bench.states(taken) == ["succeeded"] * 20
    assert bench.store.applied == [8, 8, 4]


def test_an_end_counts_with_the_arguments_that_it_moves(bench, monkeypatch):
    taken = bench.started(3)
    monkeypatch.setattr(settle_ops, "TRANSACTION_BYTES", len(taken[0].claim.arguments) + 1)
    bench.settler.report(ended(taken))

    bench.settler.start()
    bench.settler.stop()

    assert bench.store.applied == [1, 1, 1]


def test_the_last_log_lines_of_a_batch_are_written_in_several_writes(bench, monkeypatch):
    monkeypatch.setattr("duly.worker.update_buffer.TRANSACTION_BYTES", 3)
    (held,) = taken = bench.started()
    for number in range(5):
        bench.journal.log(held.claim, "info", f"{number}")

    bench.settler.settle(ended(taken))

    run = bench.app.runs.get(held.claim.run_id)
    assert [line.message for line in run.logs()] == ["0", "1", "2", "3", "4"]
    assert bench.store.applied == [1, 2]
    assert bench.states(taken) == ["succeeded"]


@pytest.mark.parametrize(
    "error", [StoreUnavailable("gone"), StoreFull("full"), StoreReadOnly("read-only")]
)
def test_an_outage_is_waited_out_and_nothing_is_lost(bench, error):
    taken = bench.started(3)
    bench.store.errors = [error] * 6

    bench.settler.settle(ended(taken))

    assert bench.states(taken) == ["succeeded"] * 3
    assert sum(isinstance(event, StoreFailed) for event in bench.events) == 6
    assert bench.inflight.is_empty()


def test_the_marks_stay_while_the_store_is_away(bench):
    taken = bench.started(2)
    seen = []
    bench.store.refuse = lambda _op: seen.append(len(list(bench.slots.marks())))

    bench.settler.settle(ended(taken))

    assert seen == [2, 2]


def test_a_worker_that_was_declared_dead_meanwhile_records_nothing(bench, monkeypatch):
    taken = bench.started(2)
    bench.store.errors = [StoreUnavailable("gone")] * 3
    bench.store.refuse = lambda _op: pytest.fail("a dead worker wrote")

    def give_up(_seconds: float) -> None:
        bench.gone = not bench.store.errors

    monkeypatch.setattr(settler_module, "_sleep", give_up)

    bench.settler.settle(ended(taken))

    assert bench.states(taken) == ["running"] * 2
    assert bench.inflight.is_empty()
    told = [event for event in bench.events if isinstance(event, ResultDropped)]
    assert told == [ResultDropped(held.claim.run_id, 1) for held in taken]


def test_while_the_lease_is_over_nothing_is_written_until_it_is_renewed(bench, monkeypatch):
    (held,) = taken = bench.started()
    bench.slots.deadline = 0.0
    looks = []

    def renew_at_the_fifth(_seconds: float) -> None:
        assert bench.store.applied == []
        looks.append(bench.states([held]))
        if len(looks) == 5:
            bench.slots.deadline = monotonic() + 1000

    monkeypatch.setattr(settler_module, "_sleep", renew_at_the_fifth)

    bench.settler.settle(ended(taken))

    assert looks == [["running"]] * 5
    assert bench.states(taken) == ["succeeded"]


def test_a_claim_that_was_lost_is_dropped_alone_and_told(bench):
    lost, kept = bench.started(2)
    fence = lost.claim._replace(claim_number=lost.claim.claim_number - 1)
    lost.claim = fence

    bench.settler.settle(ended([lost, kept]))

    assert bench.states([kept]) == ["succeeded"]
    assert bench.states([lost]) == ["running"]
    assert [e for e in bench.events if isinstance(e, ResultDropped)] == [
        ResultDropped(fence.run_id, fence.claim_number)
    ]


def test_a_lost_claim_is_told_before_it_is_released(bench):
    (lost_one,) = taken = bench.started()
    lost_one.released = threading.Event()
    bench.app.store.do(Recover(bench.worker_id, lost))
    released = []
    bench.app.bus.subscribe(
        lambda event: (
            released.append(lost_one.released.is_set())
            if isinstance(event, ResultDropped)
            else None
        )
    )

    bench.settler.settle(ended(taken))

    assert released == [False]
    assert lost_one.released.is_set()


def test_what_another_worker_took_over_is_not_overwritten(bench):
    taken = bench.started()
    bench.app.store.do(Recover(bench.worker_id, lost))

    bench.settler.settle(ended(taken))

    assert bench.states(taken) == ["queued"]
    assert bench.inflight.is_empty()


def test_one_end_that_cannot_be_recorded_fails_alone(bench):
    bad, good = taken = bench.started(2)
    culprit = bad.claim.run_id

    def refuse(op):
        broken = isinstance(op, Settle) and op.run_id == culprit and op.outcome == "returned"
        return ValueRefused("no such text") if broken else None

    bench.store.refuse = refuse

    bench.settler.settle(ended(taken))

    assert bench.states([bad, good]) == ["failed", "succeeded"]
    assert bench.app.runs.get(culprit).cause == "unrecordable"


def test_an_outage_while_the_culprit_is_looked_for_loses_nothing(bench):
    bad, good = taken = bench.started(2)
    culprit = bad.claim.run_id
    outages = [StoreUnavailable("gone"), StoreFull("full")]
    alone = 0

    def refuse(op):
        nonlocal alone
        if isinstance(op, Settle) and op.run_id == culprit and op.outcome == "returned":
            alone += 1
            if alone % 2 == 0 and outages:
                return outages.pop()
            return ValueRefused("no such text")
        return None

    bench.store.refuse = refuse
    bench.settler.start()
    bench.settler.report(ended(taken))
    bench.settler.stop()

    assert bench.states([bad, good]) == ["failed", "succeeded"]


def test_an_error_nobody_knows_does_not_end_the_settler(bench):
    first, second = bench.started(2)
    bench.store.errors = [RuntimeError("a bug")] * 3
    bench.settler.start()

    bench.settler.report(ended([first]))
    bench.settler.report(ended([second]))
    bench.settler.stop()

    assert "succeeded" in bench.states([second])
    assert bench.inflight.is_empty()


def test_an_end_that_is_tried_again_does_not_wait_until_no_body_ends(bench):
    refused, plain = bench.started(2)
    bench.settler._later.append((monotonic(), ended([refused])))
    bench.settler.report(ended([plain]))

    taken = [bench.settler._take() for _ in range(2)]

    assert [held for batch in taken for held, *_ in batch] == [refused, plain]


def test_a_raised_end_is_queued_again_and_tells_how_soon(bench):
    soon = []
    bench.settler.requeued = soon.append
    taken = bench.started()

    bench.settler.settle(ended(taken, Snoozed(7.5)))

    assert bench.states(taken) == ["queued"]
    assert soon == [7.5]
    (event,) = [e for e in bench.events if isinstance(e, AttemptEnded)]
    assert event.outcome == "snoozed"


@pytest.mark.parametrize(
    ("outcome", "told"),
    [(BOOM, True), (Snoozed(5.0), True), (Snoozed(5.0), False)],
    ids=["raised", "snoozed", "snoozed before it was known here"],
)
def test_anything_but_a_return_is_cancelled_once_that_was_asked_for(bench, outcome, told):
    (held,) = taken = bench.started()
    bench.app.store.do(Cancel(held.claim.run_id, "ann"))
    held.cancel = "requested" if told else None

    bench.settler.settle(ended(taken, outcome))

    assert bench.states(taken) == ["cancelled"]
    assert bench.app.runs.get(held.claim.run_id).cause == "requested"


def test_a_body_that_returned_has_succeeded_although_a_cancel_was_asked_for(bench):
    (held,) = taken = bench.started()
    bench.app.store.do(Cancel(held.claim.run_id, "ann"))
    held.cancel = "requested"

    bench.settler.settle(ended(taken))

    assert bench.states(taken) == ["succeeded"]


def test_the_last_words_of_a_body_are_written_before_its_end(bench):
    (held,) = taken = bench.started()
    bench.journal.log(held.claim, "info", "almost done")

    bench.settler.settle(ended(taken))

    assert [line.message for line in bench.app.runs.get(held.claim.run_id).logs()] == [
        "almost done"
    ]
    assert bench.states(taken) == ["succeeded"]


@pytest.mark.parametrize("commits_words_apart", [False, True])
def test_an_end_that_is_refused_neither_takes_nor_doubles_lines_of_its_batch(
    bench, commits_words_apart
):
    bench.store.commits_words_apart = commits_words_apart
    taken = bench.started(2)
    for held in taken:
        bench.journal.log(held.claim, "info", "almost done")
    refused = taken[0].claim.run_id

    def refuse(op):
        if type(op).__name__ == "Settle" and op.run_id == refused and op.outcome == "returned":
            return ValueError("cannot be stored")
        return None

    bench.store.refuse = refuse
    bench.settler.settle(ended(taken))

    for held in taken:
        lines = bench.app.runs.get(held.claim.run_id).logs()
        assert [line.message for line in lines] == ["almost done"]


class TestJournal:
    """What bodies say is neither lost in an outage nor overtaken by their end."""

    def test_lines_survive_an_outage(self, bench):
        (held,) = bench.started()
        bench.journal.log(held.claim, "info", "one")
        bench.journal.progress(held.claim, 0.5, "half")
        bench.store.errors = [StoreUnavailable("gone")]
        with pytest.raises(StoreUnavailable):
            bench.journal.tick()
        bench.journal.log(held.claim, "info", "two")

        bench.journal.tick()

        run = bench.app.runs.get(held.claim.run_id)
        assert [line.message for line in run.logs()] == ["one", "two"]
        assert (run.record.progress, run.record.progress_text) == (0.5, "half")

    @pytest.mark.parametrize("how", ["tick", "settle", "transaction"])
    def test_a_store_that_fails_between_two_runs_doubles_no_line(self, bench, how):
        separate = bench.commit_separately()
        taken = bench.started(3)
        for held in taken:
            bench.journal.log(held.claim, "info", "one")
        with pytest.raises(StoreUnavailable):
            bench.journal.tick()
        for held in taken:
            bench.journal.log(held.claim, "info", "two")

        if how == "transaction":
            for item in ended(taken):
                bench.settle_in_transaction(item)
        else:
            if how == "tick":
                bench.journal.tick()
            bench.settler.settle(ended(taken))

        assert [len(failure.written + failure.left) for failure in separate.failures] == [3]
        assert bench.states(taken) == ["succeeded"] * 3
        for held in taken:
            lines = bench.app.runs.get(held.claim.run_id).logs()
            assert [line.message for line in lines] == ["one", "two"]

    def test_a_store_that_fails_between_a_line_and_the_end_doubles_no_line(self, bench):
        separate = bench.commit_separately()
        (held,) = taken = bench.started()
        bench.journal.log(held.claim, "info", "one")

        bench.settler.settle(ended(taken))

        ((written, left),) = separate.failures
        assert [type(op).__name__ for op in (*written, *left)] == ["AddLogs", "Settle"]
        lines = bench.app.runs.get(held.claim.run_id).logs()
        assert [line.message for line in lines] == ["one"]
        assert bench.states(taken) == ["succeeded"]

    def test_a_line_that_is_written_after_its_run_has_ended_keeps_no_other_run_waiting(self, bench):
        (held,) = taken = bench.started()
        bench.settler.settle(ended(taken))
        bench.journal.log(held.claim, "info", "of a thread that the body left behind")
        bench.journal.tick()
        others = bench.started(2)
        bench.store.applied.clear()

        bench.settler.settle_here(ended(others))

        assert bench.states(others) == ["succeeded"] * 2
        assert bench.journal.is_quiet()
        assert bench.app.runs.get(held.claim.run_id).logs() == []

    def test_lines_written_after_the_end_count_toward_the_limit_of_their_attempt(
        self, bench, monkeypatch
    ):
        monkeypatch.setattr("duly.run_log.LOG_LINES_PER_ATTEMPT", 3)
        (held,) = bench.started()
        log = RunContext(held.claim, bench.journal, None).log
        for number in range(2):
            log.info("line %s", number)
        bench.journal.confirm_written(bench.journal.flush_run(held.claim.run_id))

        for number in range(5):
            log.info("late line %s", number)

        (late,) = bench.journal.flush_run(held.claim.run_id)
        ((_, level, message),) = late.lines
        assert (level, message) == ("warning", "more than 3 lines: the rest is omitted")

    def test_a_run_whose_lines_are_being_written_is_not_quiet(self, bench):
        (held,) = bench.started()
        bench.journal.log(held.claim, "info", "first")
        seen = []
        bench.store.refuse = lambda _op: seen.append(bench.journal.is_quiet())

        bench.journal.tick()

        assert seen == [False]
        assert bench.journal.is_quiet()

    @pytest.mark.parametrize("is_late", [False, True])
    def test_an_older_attempt_neither_takes_lines_of_the_newer_one_nor_adds_to_them(
        self, bench, is_late
    ):
        (held,) = bench.started()
        older = held.claim._replace(claim_number=held.claim.claim_number - 1)
        said = [(older, 0.9, "of the older"), (held.claim, 0.1, "of the newer")]
        for claim, fraction, text in reversed(said) if is_late else said:
            bench.journal.log(claim, "info", text)
            bench.journal.progress(claim, fraction, text)

        bench.journal.tick()

        run = bench.app.runs.get(held.claim.run_id)
        assert [line.message for line in run.logs()] == ["of the newer"]
        assert (run.record.progress, run.record.progress_text) == (0.1, "of the newer")

    def test_what_an_outage_kept_back_of_an_older_attempt_is_not_told_of_the_newer(self, bench):
        (held,) = bench.started()
        older = held.claim._replace(claim_number=held.claim.claim_number - 1)
        bench.journal.log(older, "info", "of the older")
        bench.journal.progress(older, 0.9, "of the older")

        def say_more(_op):
            bench.store.refuse = lambda _op: None
            bench.journal.log(held.claim, "info", "of the newer")
            bench.journal.progress(held.claim, 0.1, "of the newer")
            return StoreUnavailable("gone")

        bench.store.refuse = say_more
        with pytest.raises(StoreUnavailable):
            bench.journal.tick()

        bench.journal.tick()

        run = bench.app.runs.get(held.claim.run_id)
        assert [line.message for line in run.logs()] == ["of the newer"]
        assert run.record.progress == 0.1

    def test_what_a_later_call_leaves_out_stays_as_it_was(self, bench):
        (held,) = bench.started()
        bench.journal.progress(held.claim, None, "loading")
        bench.journal.progress(held.claim, 0.2, None)

        bench.journal.tick()
        bench.journal.progress(held.claim, 0.3, None)
        bench.journal.tick()

        record = bench.app.runs.get(held.claim.run_id).record
        assert (record.progress, record.progress_text) == (0.3, "loading")

    def test_newer_progress_is_not_overwritten_by_what_an_outage_kept_back(self, bench):
        (held,) = bench.started()
        bench.journal.progress(held.claim, 0.1, None)
        bench.store.errors = [StoreUnavailable("gone")]
        bench.store.refuse = lambda _op: None
        with pytest.raises(StoreUnavailable):
            bench.journal.tick()
        bench.journal.progress(held.claim, 0.9, None)

        bench.journal.tick()

        assert bench.app.runs.get(held.claim.run_id).record.progress == 0.9

    def test_an_end_waits_for_the_lines_that_are_being_written(self, bench):
        (held,) = taken = bench.started()
        bench.journal.log(held.claim, "info", "first")
        writing, go_on = threading.Event(), threading.Event()

        def hold_up(op):
            if type(op).__name__ == "AddLogs":
                writing.set()
                assert go_on.wait(20)

        bench.store.refuse = hold_up
        flushing = threading.Thread(target=bench.journal.tick)
        flushing.start()
        assert writing.wait(20)
        settling = threading.Thread(target=bench.settler.settle, args=(ended(taken),))
        settling.start()
        settling.join(0.3)
        go_on.set()
        flushing.join()
        settling.join()

        assert [line.message for line in bench.app.runs.get(held.claim.run_id).logs()] == ["first"]
        assert bench.states(taken) == ["succeeded"]


class TestSettlingHere:
    """A thread that is free records ends itself; whatever is not plain goes the usual way."""

    def test_a_batch_is_recorded_by_the_thread_that_brings_it(self, bench):
        taken = bench.started(5)
        threads = []
        bench.store.refuse = lambda _op: threads.append(threading.current_thread())

        bench.settler.settle_here(ended(taken))

        assert bench.states(taken) == ["succeeded"] * 5
        assert set(threads) == {threading.current_thread()}
        assert bench.inflight.is_empty()
        assert not bench.settler.is_busy

    def test_large_results_are_left_to_the_settlers_thread(self, bench):
        taken = bench.started(9)

        bench.settler.settle_here(ended(taken, Returned('"' + "x" * (RESULT_BYTES - 2) + '"')))
        written_here = list(bench.store.applied)
        bench.settler.start()
        bench.settler.stop()

        assert written_here == []
        assert bench.states(taken) == ["succeeded"] * 9

    @pytest.mark.parametrize("error", [StoreUnavailable("gone"), RuntimeError("a bug")])
    def test_after_a_failure_the_settlers_thread_goes_on_with_it(self, bench, error):
        taken = bench.started(3)
        bench.store.errors = [error]

        bench.settler.settle_here(ended(taken))
        bench.settler.start()
        bench.settler.stop()

        assert bench.states(taken) == ["succeeded"] * 3
        assert bench.inflight.is_empty()

    def test_nothing_is_written_past_the_lease(self, bench):
        taken = bench.started(1)
        bench.slots.deadline = monotonic() - 1

        bench.settler.settle_here(ended(taken))

        assert bench.store.applied == []
        assert bench.states(taken) == ["running"]
        bench.slots.deadline = monotonic() + 100
        bench.settler.start()
        bench.settler.stop()
        assert bench.states(taken) == ["succeeded"]

    def test_a_cancel_that_came_in_is_heeded(self, bench):
        (held,) = taken = bench.started(1)
        bench.app.store.do(Cancel(held.claim.run_id, "me", ""))

        bench.settler.settle_here(ended(taken, Snoozed(5.0)))
        bench.settler.start()
        bench.settler.stop()

        assert bench.states(taken) == ["cancelled"]

    def test_whoever_waits_for_a_claim_is_told_when_it_is_done(self, bench):
        rested = []
        bench.settler.rests = lambda: rested.append(bench.settler.is_busy)

        bench.settler.settle_here(ended(bench.started(1)))

        assert rested == [False]

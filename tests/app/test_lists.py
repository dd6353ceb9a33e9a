"""`app.runs.list`: filters, order and pages; and the queues."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from duly import BadOption, Duly
from duly.store.ops.upkeep import Tick


@pytest.fixture
def send(app: Duly):
    """A task that fails on odd numbers."""

    @app.task(name="send", queue="mail")
    def send(number: int = 0) -> int:
        if number % 2:
            message = "odd"
            raise ValueError(message)
        return number

    return send


@pytest.fixture
def bill(app: Duly):
    """Another task."""

    @app.task(name="bill")
    def bill() -> None: ...

    return bill


def ids(runs) -> list[str]:
    """Return the runs' ids."""
    return [run.id for run in runs]


def test_runs_are_listed_newest_first(app, send):
    made = [send.enqueue().id for _ in range(3)]

    assert ids(app.runs.list()) == made[::-1]


def test_runs_are_filtered_by_task_queue_tag_and_time(app, send, bill):
    first = send.using(tags={"tenant": "x", "n": "1"}).enqueue()
    second = send.using(queue="urgent", tags={"tenant": "x"}).enqueue()
    third = bill.using(tags={"tenant": "y"}).enqueue()

    since = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=third.record.created_at)
    assert ids(app.runs.list(task="send")) == [second.id, first.id]
    assert ids(app.runs.list(task=bill)) == [third.id]
    assert ids(app.runs.list(queue="urgent")) == [second.id]
    assert ids(app.runs.list(tag="tenant=x")) == [second.id, first.id]
    assert ids(app.runs.list(tag=("tenant", "y"))) == [third.id]
    assert ids(app.runs.list(tag="n=1", task="send", queue="mail")) == [first.id]
    assert third.id in ids(app.runs.list(since=since))
    assert app.runs.list(since=since + timedelta(hours=1)) == []
    assert app.runs.list(tag="tenant=z") == []
    assert app.runs.list(task="nobody:knows") == []


def test_runs_are_filtered_by_state(app, send):
    good, bad = send.enqueue(2), send.enqueue(3)
    app.worker().drain(timeout=20)
    cancelled = send.enqueue()
    cancelled.cancel()
    queued = send.enqueue()
    later = send.using(delay=60).enqueue()

    assert ids(app.runs.list(state="succeeded")) == [good.id]
    assert ids(app.runs.list(state="failed")) == [bad.id]
    assert ids(app.runs.list(state="cancelled")) == [cancelled.id]
    assert ids(app.runs.list(state="queued")) == [later.id, queued.id]
    assert ids(app.runs.list(state=["failed", "succeeded"])) == [bad.id, good.id]
    assert app.runs.list(state="running") == []
    assert ids(app.runs.list(fingerprint=bad.refresh().record.fingerprint)) == [bad.id]


def test_pages_have_no_gap_and_no_duplicate(app, send):
    made = ids(app.enqueue_many(send.call(n * 2) for n in range(25)))

    found, cursor, pages = [], None, 0
    while True:
        page = app.runs.list(limit=7, cursor=cursor)
        found += ids(page)
        pages += 1
        cursor = page.cursor
        if cursor is None:
            break

    assert found == made[::-1]
    assert pages == 4


def test_runs_enqueued_between_two_pages_do_not_change_the_pages(app, send):
    made = ids(app.enqueue_many(send.call() for _ in range(6)))
    first = app.runs.list(limit=3)
    send.enqueue()

    second = app.runs.list(limit=3, cursor=first.cursor)

    assert ids(first) + ids(second) == made[::-1]


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ({"state": "done"}, "there is no state 'done'; the states are queued, running"),
        ({"state": ["failed", ""]}, "there is no state ''"),
        ({"limit": 0}, "limit must be from 1 to 200, not 0"),
        ({"limit": 201}, "limit must be from 1 to 200, not 201"),
        ({"tag": "tenant"}, "a tag filter must have the form name=value"),
        ({"tag": "=x"}, "a tag filter must have the form name=value"),
        ({"since": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - that is the case
        ({"cursor": "page2"}, "cursor 'page2' is not valid; pass a cursor that a list returned"),
    ],
)
def test_an_invalid_filter_is_refused(untouched, which, message):
    with pytest.raises(BadOption, match=message):
        untouched.runs.list(**which)


class TestQueues:
    """Pausing and resuming."""

    def test_a_paused_queue_starts_no_runs_while_other_queues_continue(self, app, send, bill):
        app.queues.pause("mail", actor="ann", reason="spam")
        held, free = send.enqueue(2), bill.enqueue()

        with app.worker():
            free.result(timeout=20)
            app.store.do(Tick(10))

        assert held.refresh().state == "queued"
        assert held.record.parked == "paused"
        (queue,) = [queue for queue in app.queues.list() if queue.name == "mail"]
        assert (queue.paused, queue.ready, queue.waiting) == (True, 0, 1)

    def test_a_resumed_queue_starts_its_runs(self, app, send):
        app.queues.pause("mail")
        run = send.enqueue(2)
        app.worker().drain(timeout=20)
        assert run.refresh().state == "queued"

        app.queues.resume("mail", actor="bob")
        app.worker().drain(timeout=20)

        assert run.refresh().state == "succeeded"
        acts = [(act.actor, act.act, act.subject) for act in app.store.list_audit_entries(None, 10)]
        assert acts[0] == ("bob", "resume", "queue mail")

    @pytest.mark.timing
    def test_a_running_worker_starts_the_runs_of_a_resumed_queue_immediately(self, app, send, bill):
        app.queues.pause("mail")
        run = send.enqueue(2)

        with app.worker():
            bill.enqueue().result(timeout=20)
            app.store.do(Tick(10))
            assert run.refresh().record.parked == "paused"
            begun = time.monotonic()
            app.queues.resume("mail")

            assert run.result(timeout=20) == 2
            assert time.monotonic() - begun < 2

    def test_workers_are_woken_after_the_runs_of_a_resumed_queue_are_moved(
        self, app, send, bill, monkeypatch
    ):
        app.queues.pause("mail")
        run = send.enqueue(2)
        with app.worker():
            bill.enqueue().result(timeout=20)
            app.store.do(Tick(10))
        assert run.refresh().record.parked == "paused"
        parked_at_wakes = []
        monkeypatch.setattr(
            app.store, "wake", lambda: parked_at_wakes.append(run.refresh().record.parked)
        )

        app.queues.resume("mail")

        # The worker has ended, so by now the run is parked for another reason.
        assert parked_at_wakes == ["unregistered"]

    def test_pausing_a_queue_does_not_stop_its_active_run(self, app):
        entered, may_continue = threading.Event(), threading.Event()

        @app.task(name="slow", queue="mail")
        def slow() -> str:
            entered.set()
            may_continue.wait(20)
            return "done"

        run = slow.enqueue()
        with app.worker():
            assert entered.wait(20)
            app.queues.pause("mail")
            may_continue.set()

            assert run.result(timeout=20) == "done"

    @pytest.mark.parametrize("name", ["", "two words", "a\0", 7])
    def test_an_invalid_queue_name_is_refused(self, untouched, name):
        with pytest.raises(BadOption, match="queue"):
            untouched.queues.pause(name)

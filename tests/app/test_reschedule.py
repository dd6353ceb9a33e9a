"""`run.reschedule()` and `app.runs.reschedule()`: what they take, change and refuse."""

from datetime import UTC, datetime, timedelta

import pytest

from duly import RunNotFound
from duly.core.instants import moment
from duly.errors import BadOption, QueueFull, RunNotRescheduled

PLAN = datetime(2090, 1, 31, 8, tzinfo=UTC)


@pytest.fixture
def send(app):
    """A task whose runs wait for a worker."""

    @app.task(name="send", queue="mail")
    def send(number: int = 0) -> int:
        return number

    return send


def test_a_delayed_run_starts_now(app, send):
    run = send.using(delay=3600).enqueue(7)

    assert run.reschedule(delay=0) is run

    app.worker().drain(timeout=20)
    assert run.result(timeout=5) == 7


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_a_delay_counts_from_now(app, send, delay):
    run = send.enqueue()

    run.reschedule(delay=delay)

    left = moment(run.record.due_at) - moment(app.store.now())
    assert timedelta(seconds=60) < left <= timedelta(seconds=90)


def test_a_run_gets_a_time_a_priority_and_a_queue(app, send):
    run = send.enqueue()

    app.runs.reschedule(run.id, at=PLAN, priority=5, queue="slow", actor="ann", reason="a flood")

    record = run.refresh().record
    assert (moment(record.due_at), record.priority, record.queue) == (PLAN, 5, "slow")
    (act,) = app.store.list_audit_entries(run.id, 5)
    assert (act.actor, act.reason) == ("ann", "a flood")
    assert act.act == "reschedule to 2090-01-31 08:00:00 UTC, priority 5, queue slow"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "nothing would change"),
        ({"delay": 1, "at": PLAN}, "not both"),
        ({"delay": -1}, "delay must be from 0"),
        ({"delay": "5m"}, "delay must be a number of seconds"),
        ({"at": datetime(2030, 1, 31)}, "has no time zone"),  # noqa: DTZ001 - on purpose
        ({"priority": "high"}, "priority must be a whole number"),
        ({"priority": True}, "priority must be a whole number"),
        ({"queue": ""}, "queue"),
        ({"delay": 0, "reason": "x" * 2_000}, "reason"),
    ],
)
def test_an_option_that_cannot_be_kept_is_refused_and_changes_nothing(app, send, options, words):
    run = send.enqueue()
    before = run.record

    with pytest.raises(BadOption, match=words):
        run.reschedule(**options)

    assert run.refresh().record == before
    assert app.store.list_audit_entries(run.id, 5) == []


def test_a_run_that_has_ended_is_refused_with_its_state(app, send):
    run = send.enqueue()
    run.cancel()

    with pytest.raises(RunNotRescheduled, match=f"run {run.id} .* it has ended: cancelled"):
        run.reschedule(delay=0)


def test_a_run_is_not_moved_beyond_its_expiry(send):
    run = send.using(expires=60).enqueue()

    with pytest.raises(RunNotRescheduled, match="it would not start before it expires, at 20"):
        run.reschedule(delay=61)


def test_a_full_queue_takes_no_more_runs(app, send):
    app.queues.limit("slow", max_size=1)
    first, second = send.enqueue(), send.enqueue()
    first.reschedule(queue="slow")

    with pytest.raises(QueueFull) as caught:
        second.reschedule(queue="slow")

    assert (caught.value.queue, caught.value.max_size) == ("slow", 1)
    assert second.refresh().record.queue == "mail"


@pytest.mark.parametrize("run_id", ["00000000-0000-7000-8000-00000000dead", "no id"])
def test_an_unknown_run_is_not_found(app, run_id):
    with pytest.raises(RunNotFound):
        app.runs.reschedule(run_id, delay=0)

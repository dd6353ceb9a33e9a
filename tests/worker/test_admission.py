"""A task may turn runs away before they begin; they end as it says, beside those that run."""

import threading
from dataclasses import replace

import pytest

from duly import Duly, RunFailed, RunInterrupted
from duly.core.outcome import Refused
from duly.errors import StoreUnavailable
from duly.store.ops.runs import Settle
from duly.task import Task

pytestmark = pytest.mark.surface


def define(app: Duly, admit) -> tuple[Task, list[int]]:
    """Make a task that asks before it begins, and notes its calls."""
    ran: list[int] = []

    def body(number: int) -> None:
        ran.append(number)

    definition = replace(Duly("sqlite://").task(name="asks")(body).definition, admit=admit)
    app.registry.add(definition)
    return Task(app, definition), ran


def test_what_is_turned_away_ends_as_told_and_the_others_run(app):
    refused = set()
    task, ran = define(
        app, lambda claim: Refused("odd", "too odd") if claim.run_id in refused else None
    )
    runs = [task.enqueue(number) for number in range(6)]
    refused |= {run.id for run in runs[1::2]}

    app.worker().drain(timeout=30)

    assert sorted(ran) == [0, 2, 4]
    assert {run.refresh().state for run in runs[::2]} == {"succeeded"}
    for run in runs[1::2]:
        with pytest.raises(RunInterrupted):
            run.result(timeout=1)
        assert (run.cause, run.record.error) == ("odd", "Refused: too odd")
        assert [attempt.outcome for attempt in run.attempts()] == ["refused"]


def test_while_the_store_does_not_answer_the_run_waits(app):
    failures = [StoreUnavailable("no answer"), StoreUnavailable("no answer")]

    def admit(_claim):
        if failures:
            raise failures.pop()

    task, ran = define(app, admit)
    run = task.enqueue(1)

    app.worker().drain(timeout=30)

    assert (run.refresh().state, run.record.attempt, ran) == ("succeeded", 1, [1])


def test_a_worker_has_not_drained_while_it_hands_back(app, monkeypatch):
    failures = [StoreUnavailable("no answer") for _ in range(3)]
    apply = app.store.apply

    def apply_late(ops):
        if any(isinstance(op, Settle) for op in ops):
            threading.Event().wait(0.2)
        return apply(ops)

    monkeypatch.setattr(app.store, "apply", apply_late)

    def admit(_claim):
        if failures:
            raise failures.pop()

    task, ran = define(app, admit)
    task.enqueue(1)

    app.worker().drain(timeout=30)

    assert ran == [1]


def test_an_error_of_the_asking_itself_fails_the_run(app):
    def admit(_claim):
        raise ValueError("boom")

    task, ran = define(app, admit)
    run = task.enqueue(1)

    app.worker().drain(timeout=30)

    with pytest.raises(RunFailed, match="boom"):
        run.result(timeout=1)
    assert ran == []

"""Runs in the calling thread end as a worker's do: by the same decision, and once."""

from dataclasses import replace

import pytest

import duly
from duly import Duly
from duly.core.outcome import Refused
from duly.events import AttemptEnded
from duly.task import Task
from duly.worker.inline_worker import InlineWorker


@pytest.fixture
def drain(app: Duly):
    return InlineWorker(app.store, app.registry, app.bus).drain


def test_a_run_goes_on_when_its_children_have_ended(app, drain):
    @app.task(name="square")
    def square(number: int) -> int:
        return number * number

    @app.task(name="parent")
    def parent() -> list[int]:
        return duly.gather(square.call(number) for number in range(3))

    run = parent.enqueue()

    assert drain() == 5
    assert run.result(timeout=0) == [0, 1, 4]


def test_a_body_that_raises_after_its_cancel_was_asked_for_is_cancelled(app, drain):
    ends: list[AttemptEnded] = []
    app.bus.subscribe(lambda event: ends.append(event) if type(event) is AttemptEnded else None)

    @app.task(name="cancelled", retries=3)
    def cancelled() -> None:
        app.runs.cancel(duly.current().run_id)
        raise ValueError("boom")

    run = cancelled.enqueue()

    assert drain() == 1
    assert (run.refresh().state, run.cause) == ("cancelled", "requested")
    assert [end.verdict.state for end in ends] == ["cancelled"]


def test_what_its_task_turns_away_does_not_begin(app, drain):
    def body() -> None:
        pytest.fail("it began")

    made = Duly("sqlite://").task(name="refused")(body).definition
    definition = replace(made, admit=lambda _claim: Refused("odd", "too odd"))
    app.registry.add(definition)
    run = Task(app, definition).enqueue()

    assert drain() == 1
    assert (run.refresh().state, run.cause) == ("interrupted", "odd")

"""`duly runs show` with steps, and `duly runs resolve`."""

import asyncio
import json
import re

import pytest

import duly
from duly import Retry
from duly.api.runs import Filter
from duly.errors import AttemptTimedOut, StepNotResolved
from tests.servers.processes import wait_until


@pytest.fixture
def interrupted(app):
    """A run whose first attempt was interrupted in a step that must not start twice."""

    @app.task(name="charge-order", retries=Retry(1, base=0))
    def charge_order() -> str:
        duly.step("prepare", int)
        return duly.step("charge", strike, on_crash="hold")

    def strike() -> str:
        if duly.current().generation == 1:
            raise AttemptTimedOut
        return "charged"

    run = charge_order.enqueue()
    with app.worker():
        wait_until(
            lambda: run.refresh().state == "interrupted", seconds=20, what="it is interrupted"
        )
    return run


def has_line(text, pattern):
    """Return whether a line of the text matches, from its beginning to its end."""
    return any(re.fullmatch(pattern, line.rstrip()) for line in text.splitlines())


def test_show_lists_the_steps(cli, interrupted):
    shown = cli("runs", "show", interrupted.id).stdout
    found = json.loads(cli("runs", "show", interrupted.id, "--json").stdout)["steps"]

    assert "begun step   charge" in shown
    assert [(step["name"], step["done"]) for step in found] == [
        ("prepare", True),
        ("charge", False),
    ]


def test_show_gives_the_duration_and_the_result_of_a_step_and_every_time_in_one_format(cli, app):
    @app.task(name="pack")
    def pack() -> None:
        duly.current().log.info("packing")
        duly.step("weigh", lambda: {"grams": 120})

    run = pack.enqueue()
    app.worker().drain(timeout=20)

    shown = cli("runs", "show", run.id, "--show-args").stdout

    instant = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert has_line(shown, rf"  {instant} done  step   weigh in [\d.]+ (µs|ms|s): .*grams.*120.*")
    assert has_line(shown, rf"  {instant} info    packing")
    assert has_line(shown, r"attempt 1: returned after [\d.]+ (µs|ms|s)")
    assert set(re.findall(r"(.)\d\d:\d\d:\d\d", shown)) == {" "}


def test_show_hides_the_results_of_steps_of_a_task_that_is_not_at_hand(cli, app, folder):
    @app.task(name="pack")
    def pack() -> None:
        duly.step("weigh", lambda: "s3cret")

    run = pack.enqueue()
    app.worker().drain(timeout=20)

    (folder / "other.py").write_text("from duly import Duly\napp = Duly()\n")

    shown = cli("runs", "show", run.id, "--app", "other:app").stdout

    assert "s3cret" not in shown
    assert "weigh in" in shown


def test_show_names_the_event_that_a_run_waits_for(cli, app):
    @app.task(name="order")
    def order() -> None:
        duly.wait_for("paid", timeout=3600)

    run = order.enqueue()
    app.worker().drain(timeout=20)

    shown = cli("runs", "show", run.id).stdout

    assert has_line(shown, r"why +the run waits for event 'paid' until \S+ \S+ UTC \(in .*")
    assert has_line(shown, r".* waits wait   event:paid for event 'paid' until \S+ \S+ UTC")


def test_show_names_the_child_runs_that_a_run_waits_for(cli, app):
    @app.task(name="child", queue="nobody-serves")
    def child() -> None: ...

    @app.task(name="parent")
    def parent() -> None:
        duly.gather([child.call()])

    run = parent.enqueue()
    app.worker(queues="default").drain(timeout=20)

    shown = cli("runs", "show", run.id).stdout

    (waiting_for,) = [each for each in app.runs.list() if each.record.task == "child"]
    assert "the run waits for the end of 1 child run" in shown
    assert waiting_for.id in shown


def test_a_run_is_retried_from_one_of_its_steps(app, cli, interrupted):
    unknown = cli("runs", "retry", interrupted.id, "--from-step", "chrge")
    said = cli("runs", "retry", interrupted.id, "--from-step", "charge")
    kept = [step.name for step in interrupted.steps()]
    app.worker().drain(timeout=20)

    assert (unknown.exit_code, "has no recorded step 'chrge'" in unknown.stderr) == (2, True)
    assert (said.exit_code, kept) == (0, ["prepare"])
    assert interrupted.refresh().result(timeout=1) == "charged"


def test_a_retry_is_refused_until_the_step_is_resolved(app, cli, interrupted):
    one = cli("runs", "retry", interrupted.id, "--fresh-effects")
    dead = cli("dead", "retry", interrupted.id, "--yes")

    assert one.exit_code == 1
    for said in (one.stderr, dead.stderr):
        assert "in step 'charge'" in said
        assert f"duly runs resolve {interrupted.id} --done" in said
    assert interrupted.refresh().record.generation == 1
    with pytest.raises(StepNotResolved):
        interrupted.retry()
    bulk = app.dead.retry(which=Filter(task="charge-order"))
    assert (bulk.done, bulk.skipped, len(bulk.refused)) == (0, 1, 1)


def test_a_run_continues_when_its_last_interrupted_step_is_resolved(app, cli):
    @app.task(name="pay-twice")
    async def pay_twice() -> list[str]:
        return await asyncio.gather(
            *(duly.astep(name, strike, on_crash="hold") for name in ("card", "gift"))
        )

    async def strike() -> str:
        await both.wait()
        raise AttemptTimedOut

    both = asyncio.Barrier(2)
    run = pay_twice.enqueue()
    app.worker().drain(timeout=20)
    steps = [step.name for step in run.steps() if not step.done]

    first = cli("runs", "resolve", run.id, "--done", "--step", "card")
    between = run.refresh().state
    second = cli("runs", "resolve", run.id, "--done", "--step", "gift")

    assert sorted(steps) == ["card", "gift"]
    assert (first.exit_code, "in step 'gift'" in first.stderr, between) == (0, True, "failed")
    assert "queued again" in second.stdout


def test_resolve_marks_a_step_as_done(app, cli, interrupted):
    said = cli(
        "runs", "resolve", interrupted.id, "--done", "--result", '"ch_1"', "--reason", "paid"
    )
    app.worker().drain(timeout=20)

    assert said.exit_code == 0
    assert "queued again" in said.stdout
    assert interrupted.refresh().result(timeout=1) == "ch_1"


def test_a_run_that_timed_out_in_such_a_step_can_be_resolved(app, cli):
    @app.task(name="charge-once")
    def charge_once() -> str:
        return duly.step("charge", strike, on_crash="hold")

    def strike() -> str:
        raise AttemptTimedOut

    run = charge_once.enqueue()
    app.worker().drain(timeout=20)
    before = run.refresh().state

    said = cli("runs", "resolve", run.id, "--done", "--result", '"ch_1"')
    app.worker().drain(timeout=20)

    assert (before, said.exit_code) == ("failed", 0), said.output
    assert run.refresh().result(timeout=1) == "ch_1"


def test_why_names_the_step_that_must_be_resolved(cli, interrupted):
    said = cli("why", interrupted.id).stdout

    assert "in step 'charge'" in said
    assert f"duly runs resolve {interrupted.id} --done" in said


def test_resolve_can_repeat_a_step(app, cli, interrupted):
    cli("runs", "resolve", interrupted.id, "--rerun")
    app.worker().drain(timeout=20)

    assert interrupted.refresh().result(timeout=1) == "charged"


@pytest.mark.parametrize(
    "arguments", [(), ("--rerun", "--result", "1"), ("--done", "--result", "no JSON")]
)
def test_contradictory_options_of_resolve_are_a_usage_error(cli, interrupted, arguments):
    assert cli("runs", "resolve", interrupted.id, *arguments).exit_code == 2
    assert interrupted.refresh().state == "interrupted"


def test_resolve_refuses_a_run_that_is_not_interrupted(app, cli):
    @app.task(name="other")
    def other() -> None: ...

    run = other.enqueue()

    assert cli("runs", "resolve", run.id, "--done").exit_code == 1

"""A crash at any statement, before it or after it, leaves one set of rows and loses no wake-up.

Here a transactional body and the sender of an event are struck at every statement; `make prove`
does so with all threads of all crash tasks, and tests/prove with some of them.
"""

import random
from collections.abc import Iterator

import pytest

from duly_prove.crash_tasks import CRASH_TASKS, ORDER_TAG, app, check_task
from duly_prove.fork_server import SIDES
from duly_prove.statement_sweep import StatementKill, StatementSweep

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def swept(strikes: Iterator[StatementKill]) -> list[StatementKill]:
    """Make all strikes, and return those that struck; nothing may be broken."""
    found = list(strikes)
    assert [struck for struck in found if struck.violations] == []
    return [struck for struck in found if struck.fate.was_killed]


def test_a_crash_at_any_statement_of_a_body_leaves_one_set_of_rows(store_url: str):
    with StatementSweep(store_url, thread="duly-run-1") as sweep:
        struck = swept(sweep.work("pay"))

    assert any(each.fate.statement == "COMMIT" for each in struck)
    for side in SIDES:
        said = [each.fate.statement or "" for each in struck if each.order.side == side]
        # Now and then the thread commits for other threads too, and a number or two falls on that.
        assert any("duly_prove_crash" in statement for statement in said)
        assert [each.order.number for each in struck if each.order.side == side] == [
            *range(1, len(said) + 1)
        ]


def test_rows_children_and_steps_that_are_not_as_they_should_be_are_told(store_url: str):
    with StatementSweep(store_url), app.worker():
        crash_task = CRASH_TASKS["pay"]
        run = crash_task.task.enqueue()
        run.result(timeout=20)
        (child,) = app.runs.list(tag=(ORDER_TAG, run.id))
        child.result(timeout=20)

        assert check_task(crash_task, run) == []
        for wrong in (
            crash_task._replace(rows=("first", "first", "receipt", "second")),
            crash_task._replace(children=2),
            crash_task._replace(steps=("pay",)),
        ):
            assert len(check_task(wrong, run)) == 1


def test_a_run_goes_on_though_who_sent_its_event_died_of_it(store_url: str):
    with StatementSweep(store_url, thread="MainThread") as sweep:
        struck = swept(sweep.send())

    assert any("INTO duly_events" in (each.fate.statement or "") for each in struck)


def test_a_run_goes_on_though_who_moved_it_to_the_ready_ones_died_of_it(store_url: str):
    seed = random.getrandbits(32)
    with StatementSweep(store_url, stride=4, random=random.Random(seed)) as sweep:  # noqa: S311 - no secret
        struck = swept(sweep.tick())

    assert struck

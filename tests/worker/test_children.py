"""What a run that waits for others gets of them, and what is left of those."""

from dataclasses import dataclass

import pytest

import duly
from duly import Duly, Retry, current
from duly.steps import children
from duly.store.ops.upkeep import Prune
from tests.servers.processes import wait_until

pytestmark = pytest.mark.surface


@dataclass
class Point:
    """What a task may return."""

    x: int


def returned(app: Duly, run) -> object:
    """Return what a run came to, with its children."""
    with app.worker():
        return run.result(timeout=20)


@pytest.mark.parametrize("name", ["n" * 255, "\N{SNOWMAN}" * 85])
def test_a_long_name_of_a_gather_mixes_no_children_up(app, name):
    @app.task(name="square")
    def square(number: int) -> int:
        return number * number

    @app.task(name="total")
    def total() -> list[int]:
        return duly.gather((square.call(number) for number in range(3)), name=name)

    assert returned(app, total.enqueue()) == [0, 1, 4]
    assert len(app.runs.list(task=square)) == 3


def test_results_may_be_larger_together_than_one_record_may_be(app):
    @app.task(name="page")
    def page(number: int) -> str:
        return str(number) * 200_000

    @app.task(name="book", retries=Retry(1, base=0))
    def book() -> list[str]:
        pages = duly.gather(page.call(number) for number in range(2))
        if current().attempt == 1:
            raise OSError("once more")
        return [text[0] for text in pages]

    assert returned(app, book.enqueue()) == ["0", "1"]
    assert len(app.runs.list(task=page)) == 2


def test_results_are_what_the_annotations_of_their_tasks_say(app):
    @app.task(name="point")
    def point(x: int) -> Point:
        return Point(x)

    @app.task(name="line", retries=Retry(1, base=0))
    def line() -> int:
        found = duly.gather(point.call(x) for x in range(3))
        if current().attempt == 1:
            raise OSError("once more")
        return sum(one.x for one in found)

    assert returned(app, line.enqueue()) == 3


def test_children_are_pruned_like_other_runs(app, monkeypatch):
    monkeypatch.setattr(children, "KEY_TTL_SECONDS", 0)

    @app.task(name="square")
    def square(number: int) -> int:
        return number * number

    @app.task(name="total")
    def total() -> list[int]:
        return duly.gather([square.call(2), square.call(3)])

    assert returned(app, total.enqueue()) == [4, 9]

    pruned = app.store.do(Prune(older_than=0, limit=100))
    assert pruned.runs == 3
    assert app.runs.list() == []


def test_a_gather_that_outlasts_retention_gets_the_results_of_its_children(app, monkeypatch):
    monkeypatch.setattr(children, "KEY_TTL_SECONDS", 0)

    @app.task(name="quick")
    def quick() -> int:
        return 1

    @app.task(name="slow")
    def slow() -> int:
        return int(duly.wait_for("approval")["number"])

    @app.task(name="total")
    def total() -> list[int]:
        return duly.gather([quick.call(), slow.call()])

    with app.worker():
        parent = total.enqueue()
        wait_until(
            lambda: app.runs.list(task=quick, state="succeeded"), seconds=20, what="a child ended"
        )
        app.store.do(Prune(older_than=0, limit=100))
        app.send_event("approval", {"number": 2})

        assert parent.result(timeout=20) == [1, 2]

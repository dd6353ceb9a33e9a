"""Log lines of a killed worker that it had not written yet."""

import pytest

from duly.runtime.unwritten import Unwritten, read_unwritten, unwritten_beside
from duly.store.ops import AddLogs
from tests.runtime import shop as shop_module
from tests.runtime.trees import Tree


@pytest.fixture
def shop(store_url: str):
    """The application that the workers import."""
    shop_module.app.use_url(store_url)
    assert shop_module.app.runs.list() == []
    yield shop_module
    shop_module.app.close()


@pytest.mark.process
def test_the_last_lines_of_a_killed_worker_are_kept(shop, store_url, tmp_path):
    with Tree(store_url, tmp_path).ready():
        run = shop.says_and_dies.enqueue(3)

        assert run.result(timeout=40) == 3

    lines = [(line.claim_number, line.message) for line in shop.app.store.list_logs(run.id, 100)]
    first, *rest = sorted({claim for claim, _ in lines})
    assert (first, len(rest)) == (1, 1)
    for claim in (first, *rest):
        said = [message for number, message in lines if number == claim]
        assert said == [f"line {number} of claim {claim}" for number in range(3)]


@pytest.fixture
def unwritten(tmp_path) -> Unwritten:
    return Unwritten(unwritten_beside(tmp_path / "w.slots"))


def test_lines_are_read_again_by_run_and_claim(unwritten):
    unwritten.add("a", 1, (1, "info", "one"))
    unwritten.add("b", 7, (2, "error", "two\nthree \u2028 \ud800"))
    unwritten.add("a", 1, (3, "info", "four"))

    assert read_unwritten(unwritten.path) == [
        AddLogs("a", 1, ((1, "info", "one"), (3, "info", "four"))),
        AddLogs("b", 7, ((2, "error", "two\nthree \u2028 \ud800"),)),
    ]
    assert unwritten.path.stat().st_mode & 0o777 == 0o600


def test_what_was_written_elsewhere_is_forgotten(unwritten):
    unwritten.add("a", 1, (1, "info", "one"))

    unwritten.keep([("a", 1, (2, "info", "two"))])
    unwritten.add("a", 1, (3, "info", "three"))

    assert read_unwritten(unwritten.path) == [
        AddLogs("a", 1, ((2, "info", "two"), (3, "info", "three")))
    ]
    unwritten.keep([])
    assert read_unwritten(unwritten.path) == []
    assert unwritten.path.stat().st_size == 0


def test_a_line_that_was_cut_off_and_a_file_that_is_not_there_are_no_trouble(unwritten):
    assert read_unwritten(unwritten.path) == []
    unwritten.keep([])
    assert not unwritten.path.exists()
    unwritten.add("a", 1, (1, "info", "one"))
    with unwritten.path.open("ab") as file:
        file.write(b'["a", 1, 2, "inf')

    assert read_unwritten(unwritten.path) == [AddLogs("a", 1, ((1, "info", "one"),))]


def test_a_file_that_cannot_be_made_costs_no_line_and_no_run(tmp_path):
    unwritten = Unwritten(tmp_path / "nowhere" / "w.lines")

    unwritten.add("a", 1, (1, "info", "one"))
    unwritten.keep([])

    assert not unwritten.path.exists()

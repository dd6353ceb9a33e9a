"""What a child sets for its whole process."""

import gc
import json
import subprocess
import sys

import pytest

from duly.worker.garbage_collection import collect_as_usual, collect_less, collect_rarely

_HEAP = """
import gc
import weakref

class Cycle:
    def __init__(self):
        self.itself = self

garbage = weakref.ref(Cycle())
{lines}
app = None
"""
_PROGRAM = """
from duly.worker.garbage_collection import collect_as_usual, collect_less, collect_rarely
collect_rarely()
import gc, json
from duly.worker.app_loader import locate
locate("heap:app")
locate("heap:app")
collect_less()
gc.collect()
import heap
print(json.dumps([gc.get_threshold(), heap.garbage() is None, gc.get_freeze_count() > 0]))
"""


@pytest.fixture(autouse=True)
def _collector():
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.fixture
def load(tmp_path):
    """Load an application of these lines as a child does; return thresholds, and what was freed."""

    def loaded(lines=""):
        (tmp_path / "heap.py").write_text(_HEAP.format(lines=lines))
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            cwd=tmp_path,
            check=True,
            timeout=30,
            capture_output=True,
            text=True,
        )
        return json.loads(done.stdout)

    return loaded


def test_the_garbage_collector_is_not_called_for_every_batch():
    usual = gc.get_threshold()
    collect_rarely()

    collect_less()

    assert gc.get_threshold() == (10_000, *usual[1:])


def test_an_application_is_imported_by_a_garbage_collector_as_python_has_it():
    usual = gc.get_threshold()
    collect_rarely()

    collect_as_usual()

    assert gc.get_threshold() == usual


@pytest.mark.parametrize("chosen", [(0, 0, 0), (50, 5, 5), (100_000, 10, 10)])
def test_what_the_application_has_set_for_the_garbage_collector_stays(chosen):
    collect_rarely()
    collect_as_usual()
    gc.set_threshold(*chosen)

    collect_less()

    assert gc.get_threshold() == chosen


@pytest.mark.process
def test_garbage_that_an_application_makes_while_it_is_imported_is_freed(load):
    usual = gc.get_threshold()

    thresholds, is_freed, is_frozen = load()

    assert is_freed
    assert is_frozen
    assert thresholds == [10_000, *usual[1:]]


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "factor", "chosen"),
    [
        ("gc.set_threshold(100_000)", 0, 100_000),
        ("gc.set_threshold(gc.get_threshold()[0] * 10)", 10, 0),
    ],
    ids=["a number", "a multiple"],
)
def test_thresholds_of_an_application_are_those_that_it_would_have_anywhere(
    load, line, factor, chosen
):
    first = gc.get_threshold()[0]

    thresholds, is_freed, _ = load(line)

    assert thresholds[0] == factor * first + chosen
    assert is_freed

"""What a child sets for its whole process."""

import gc

import pytest

from duly.runtime.collecting import collect_less, collect_rarely


@pytest.fixture(autouse=True)
def _threshold():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_garbage_collector_is_not_called_for_every_batch():
    usual = gc.get_threshold()
    collect_rarely()

    collect_less()

    assert gc.get_threshold() == (10_000, *usual[1:])


@pytest.mark.parametrize("chosen", [(0, 0, 0), (50, 5, 5)])
def test_what_the_application_has_set_for_the_garbage_collector_stays(chosen):
    collect_rarely()
    gc.set_threshold(*chosen)

    collect_less()

    assert gc.get_threshold() == chosen

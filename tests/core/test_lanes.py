"""Who runs a task, by the word of all workers that see to it."""

import pytest

from duly.core.states import Agreed, Lane, agreed_lanes


@pytest.mark.parametrize(
    ("lanes", "agreed"),
    [
        ({Lane.THREAD}, Agreed({"pay": "thread"}, {})),
        ({Lane.CARRIED_HOLD}, Agreed({}, {"pay": "carried-hold"})),
        ({Lane.THREAD, Lane.CARRIED}, Agreed({}, {})),
        ({Lane.THREAD, Lane.LOOP_HOLD}, Agreed({"pay": "loop-hold"}, {})),
        ({Lane.CARRIED, Lane.CARRIED_HOLD}, Agreed({}, {"pay": "carried-hold"})),
        (set(), Agreed({}, {})),
    ],
)
def test_a_task_has_a_lane_if_its_workers_agree_on_whose_it_is(lanes, agreed):
    assert agreed_lanes(("pay", lane) for lane in lanes) == agreed


def test_each_task_is_judged_by_itself():
    seen_to = [("a", Lane.THREAD), ("b", Lane.CARRIED), ("c", Lane.LOOP), ("c", Lane.CARRIED)]

    assert agreed_lanes(seen_to) == Agreed({"a": "thread"}, {"b": "carried"})

"""The lane of a task, according to all workers that register it."""

import pytest

from duly.core.states import AgreedLanes, SlotKind, agreed_lanes


@pytest.mark.parametrize(
    ("lanes", "agreed"),
    [
        ({SlotKind.THREAD}, AgreedLanes({"pay": "thread"}, {})),
        ({SlotKind.CARRIED_HOLD}, AgreedLanes({}, {"pay": "carried-hold"})),
        ({SlotKind.THREAD, SlotKind.CARRIED}, AgreedLanes({}, {})),
        ({SlotKind.THREAD, SlotKind.LOOP_HOLD}, AgreedLanes({"pay": "loop-hold"}, {})),
        ({SlotKind.CARRIED, SlotKind.CARRIED_HOLD}, AgreedLanes({}, {"pay": "carried-hold"})),
        (set(), AgreedLanes({}, {})),
    ],
)
def test_a_task_has_a_lane_if_its_workers_agree_on_its_engine(lanes, agreed):
    assert agreed_lanes(("pay", lane) for lane in lanes) == agreed


def test_each_task_is_evaluated_separately():
    seen_to = [
        ("a", SlotKind.THREAD),
        ("b", SlotKind.CARRIED),
        ("c", SlotKind.LOOP),
        ("c", SlotKind.CARRIED),
    ]

    assert agreed_lanes(seen_to) == AgreedLanes({"a": "thread"}, {"b": "carried"})

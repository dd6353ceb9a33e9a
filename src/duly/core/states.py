"""The states of a run and the lanes it waits in."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from duly.core.json_text import parsed


class State(StrEnum):
    """Where a run is; the last four are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.INTERRUPTED, State.CANCELLED})
DEAD = frozenset({State.FAILED, State.INTERRUPTED})

TRANSITIONS: dict[State, frozenset[State]] = {
    # Interrupted without an attempt is what was live in a backup and may have run since; failed,
    # what was handed to another engine too often.
    State.QUEUED: frozenset({State.RUNNING, State.CANCELLED, State.INTERRUPTED, State.FAILED}),
    State.RUNNING: frozenset({State.QUEUED}) | FINAL,
    # Only an operator's act leaves a final state, into the next generation.
    State.SUCCEEDED: frozenset({State.QUEUED}),
    State.FAILED: frozenset({State.QUEUED, State.CANCELLED}),
    State.INTERRUPTED: frozenset({State.QUEUED, State.CANCELLED}),
    State.CANCELLED: frozenset({State.QUEUED}),
}


class SlotKind(StrEnum):
    """The kind of slot a run needs; part of the index that claims use.

    A worker with ten free threads and no free process asks for what fits, and never walks past
    a million runs that do not.
    """

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"
    LOOP_HOLD = "loop-hold"
    THREAD_HOLD = "thread-hold"
    PROCESS_HOLD = "process-hold"
    SUSPECT = "suspect"
    """Its process died under it: it runs alone in a one-slot child where one can be had."""
    CARRIED = "carried"
    CARRIED_HOLD = "carried-hold"
    """Another engine's workers run it: it waits to be handed over to that engine."""
    HANDED = "handed"
    HANDED_HOLD = "handed-hold"
    """It was handed over, and waits for a worker there to claim it."""


_WHEN_REQUEUED: dict[str, str] = {
    SlotKind.HANDED: SlotKind.CARRIED,
    SlotKind.HANDED_HOLD: SlotKind.CARRIED_HOLD,
}
CARRIED_SLOT_KINDS = frozenset(
    {SlotKind.CARRIED, SlotKind.CARRIED_HOLD, SlotKind.HANDED, SlotKind.HANDED_HOLD},
)
OWN_SLOT_KINDS = frozenset(SlotKind) - CARRIED_SLOT_KINDS
"""What duly's own workers claim."""
HOLD_SLOT_KINDS = frozenset(lane for lane in SlotKind if lane.endswith("-hold"))


def slot_kind_for(executor: str, *, hold: bool, carried: bool = False) -> SlotKind:
    """Name the lane of a task by where its body runs and whether a crash holds it."""
    where = "carried" if carried else executor
    return SlotKind(f"{where}-hold" if hold else where)


def requeued_lane(lane: str) -> str:
    """Name the lane of a run that is queued again: what was handed over is to be so anew."""
    return _WHEN_REQUEUED.get(lane, lane)


class AgreedLanes(NamedTuple):
    """The lanes of tasks, by who runs them."""

    ours: dict[str, str]
    carried: dict[str, str]


def agreed_lanes(seen_to: Iterable[tuple[str, str]]) -> AgreedLanes:
    """Name the lane of each task, given the lanes in which live workers see to its runs.

    A task is left out while some of them would run it themselves and others would have it carried,
    as during a deployment.
    """
    found: dict[str, set[str]] = {}
    for task, lane in seen_to:
        found.setdefault(task, set()).add(lane)
    agreed = AgreedLanes({}, {})
    for task, lanes in found.items():
        # Of two that differ otherwise, the one that promises more.
        lane = max(lanes, key=lambda lane: (lane in HOLD_SLOT_KINDS, lane))
        if lanes <= CARRIED_SLOT_KINDS:
            agreed.carried[task] = lane
        elif lanes.isdisjoint(CARRIED_SLOT_KINDS):
            agreed.ours[task] = lane
    return agreed


RESERVED_TAGS = "duly."
"""So begin the names of tags that duly puts on runs; callers cannot, and bodies do not see them."""
PARENT_TAG = f"{RESERVED_TAGS}parent"
"""The tag of a child run that names the run which waits for it."""


def stored_tags(text: str | None) -> dict[str, str]:
    """Return the tags of a run as they are stored; none if they are damaged."""
    data = parsed(text)
    found = data.items() if isinstance(data, dict) else ()
    return {name: value for name, value in found if isinstance(value, str)}


def plain_tags(tags: dict[str, str]) -> dict[str, str]:
    """Return the tags without those that are duly's own."""
    return {name: value for name, value in tags.items() if not name.startswith(RESERVED_TAGS)}

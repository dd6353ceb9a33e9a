"""The states of a run, and its lane: the kind of slot that the run needs."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from duly.core.json_text import parsed


class State(StrEnum):
    """The state of a run. The last four are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.INTERRUPTED, State.CANCELLED})
DEAD = frozenset({State.FAILED, State.INTERRUPTED})

TRANSITIONS: dict[State, frozenset[State]] = {
    # A run that never started becomes interrupted if it was live in a restored backup, because it
    # may have run since. It becomes failed if it was handed to another engine too often.
    State.QUEUED: frozenset({State.RUNNING, State.CANCELLED, State.INTERRUPTED, State.FAILED}),
    State.RUNNING: frozenset({State.QUEUED}) | FINAL,
    # Only an operator action takes a run out of a final state, into its next generation.
    State.SUCCEEDED: frozenset({State.QUEUED}),
    State.FAILED: frozenset({State.QUEUED, State.CANCELLED}),
    State.INTERRUPTED: frozenset({State.QUEUED, State.CANCELLED}),
    State.CANCELLED: frozenset({State.QUEUED}),
}


class SlotKind(StrEnum):
    """The kind of slot that a run needs. It is part of the index that claims use.

    A worker with ten free threads and no free process asks only for runs that fit. It never scans a
    million runs that do not fit.
    """

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"
    LOOP_HOLD = "loop-hold"
    THREAD_HOLD = "thread-hold"
    PROCESS_HOLD = "process-hold"
    SUSPECT = "suspect"
    """The worker process died while it ran. It now runs alone in a one-slot child if possible."""
    CARRIED = "carried"
    CARRIED_HOLD = "carried-hold"
    """Workers of another engine run it. It waits to be handed to that engine."""
    HANDED = "handed"
    HANDED_HOLD = "handed-hold"
    """It was handed over, and waits for a worker of that engine to claim it."""


_WHEN_REQUEUED: dict[str, str] = {
    SlotKind.HANDED: SlotKind.CARRIED,
    SlotKind.HANDED_HOLD: SlotKind.CARRIED_HOLD,
}
CARRIED_SLOT_KINDS = frozenset(
    {SlotKind.CARRIED, SlotKind.CARRIED_HOLD, SlotKind.HANDED, SlotKind.HANDED_HOLD},
)
OWN_SLOT_KINDS = frozenset(SlotKind) - CARRIED_SLOT_KINDS
"""The slot kinds that duly's own workers claim."""
HOLD_SLOT_KINDS = frozenset(lane for lane in SlotKind if lane.endswith("-hold"))


def slot_kind_for(executor: str, *, hold: bool, carried: bool = False) -> SlotKind:
    """Return the lane of a task, given where its body runs and whether a crash holds it."""
    where = "carried" if carried else executor
    return SlotKind(f"{where}-hold" if hold else where)


def requeued_lane(lane: str) -> str:
    """Return the lane of a run that is queued again. A handed-over run is handed over again."""
    return _WHEN_REQUEUED.get(lane, lane)


class AgreedLanes(NamedTuple):
    """The lanes of tasks, grouped by whether duly or another engine runs them."""

    ours: dict[str, str]
    carried: dict[str, str]


def agreed_lanes(seen_to: Iterable[tuple[str, str]]) -> AgreedLanes:
    """Return the lane of each task, given the lanes that live workers use for the task's runs.

    A task is omitted while some workers would run it themselves and others would hand it to another
    engine, as during a deployment.
    """
    found: dict[str, set[str]] = {}
    for task, lane in seen_to:
        found.setdefault(task, set()).add(lane)
    agreed = AgreedLanes({}, {})
    for task, lanes in found.items():
        # If they differ in another way, choose the lane with the stronger promise.
        lane = max(lanes, key=lambda lane: (lane in HOLD_SLOT_KINDS, lane))
        if lanes <= CARRIED_SLOT_KINDS:
            agreed.carried[task] = lane
        elif lanes.isdisjoint(CARRIED_SLOT_KINDS):
            agreed.ours[task] = lane
    return agreed


RESERVED_TAGS = "duly."
"""The prefix of tags that duly sets on runs. Callers cannot set them, and tasks do not see them."""
PARENT_TAG = f"{RESERVED_TAGS}parent"
"""The tag of a child run that names the parent run, which waits for the child."""


def stored_tags(text: str | None) -> dict[str, str]:
    """Return the stored tags of a run. Empty if they are damaged."""
    data = parsed(text)
    found = data.items() if isinstance(data, dict) else ()
    return {name: value for name, value in found if isinstance(value, str)}


def tags_of_caller(text: str | None) -> dict[str, str]:
    """Return the stored tags of a run without duly's own."""
    return plain_tags(stored_tags(text))


def plain_tags(tags: dict[str, str]) -> dict[str, str]:
    """Return the tags without duly's own."""
    return {name: value for name, value in tags.items() if not name.startswith(RESERVED_TAGS)}

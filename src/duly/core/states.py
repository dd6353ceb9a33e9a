"""The states of a run and the lanes it waits in."""

from enum import StrEnum


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

MOVES: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.RUNNING, State.CANCELLED}),
    State.RUNNING: frozenset({State.QUEUED}) | FINAL,
    # Only an operator's act leaves a final state, into the next generation.
    State.SUCCEEDED: frozenset({State.QUEUED}),
    State.FAILED: frozenset({State.QUEUED, State.CANCELLED}),
    State.INTERRUPTED: frozenset({State.QUEUED, State.CANCELLED}),
    State.CANCELLED: frozenset({State.QUEUED}),
}


class Lane(StrEnum):
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


HOLD_LANES = frozenset({Lane.LOOP_HOLD, Lane.THREAD_HOLD, Lane.PROCESS_HOLD})


def lane_for(executor: str, *, hold: bool) -> Lane:
    """Name the lane of a task by where its body runs and whether a crash holds it."""
    return Lane(f"{executor}-hold" if hold else executor)


PARENT_TAG = "duly.parent"
"""The tag of a child run that names the run which waits for it."""

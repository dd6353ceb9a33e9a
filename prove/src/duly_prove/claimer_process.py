"""A separate process that claims runs under limits, holds them briefly, and settles them.

It races with other claimers until it is killed. It renews no lease; the program that kills it
recovers its runs.
"""

import json
import os
import sys
from random import Random
from typing import NamedTuple

from duly.app import Duly
from duly.clock import new_id
from duly.core.concurrency_limits import ClaimLimits, limited_lane
from duly.core.record import ClaimedRun
from duly.core.states import SlotKind, State
from duly.core.verdict import Finish, Requeue
from duly.store.ops.runs import ClaimRuns, Settle, Want
from duly.store.ops.upkeep import RegisterWorker
from duly.worker.process_lifetime import die_with_parent
from duly_prove.process_starter import ProcessStarter, StartedProcess
from duly_prove.process_tree import pause_for

QUEUE = "duly-prove-limits"
TASK = "duly_prove:limited"
OTHER_TASK = "duly_prove:unlimited"
CAPACITY = 5
"""The concurrency limit of the task."""
QUEUE_LIMIT = 8
LANE = limited_lane(SlotKind.THREAD, TASK)

_CLAIMS = 3
_HOLD_SECONDS = 0.05


class ClaimerProcess(NamedTuple):
    """A claimer process and its worker id."""

    process: StartedProcess
    worker_id: str


def start_claimer(starter: ProcessStarter, url: str, seed: int, program: str) -> ClaimerProcess:
    """Start a claimer, which registers itself as a worker."""
    worker_id = new_id()
    arguments = [str(starter.parent), str(seed), worker_id]
    return ClaimerProcess(starter.start(program, arguments, {"DULY_URL": url}), worker_id)


def requeue_lost(run: ClaimedRun) -> tuple[str, Requeue, None]:
    """Return the verdict on a killed claimer's run: its slot is free, and the run is ready."""
    again = Requeue(0.0, run.attempt, run.retries_used, run.crashes, run.lane, recorded=False)
    return "handed_back", again, None


def main() -> None:
    """Claim until killed."""
    parent, seed, worker_id = sys.argv[1:]
    die_with_parent(int(parent))
    draw = Random(int(seed))  # noqa: S311 - a seed must repeat what it chose
    store = Duly().store
    tasks = (TASK, OTHER_TASK)
    store.do(RegisterWorker(worker_id, "prove", os.getpid(), 60.0, "[]", json.dumps(tasks)))
    wants = (Want(None, SlotKind.THREAD, _CLAIMS),)
    while True:
        limits = ClaimLimits({TASK: CAPACITY}, "", draw.random() < 0.5)  # noqa: PLR2004 - a coin
        claims = store.do(ClaimRuns(worker_id, wants, tasks, "", limits))
        pause_for(draw.random() * _HOLD_SECONDS)
        done = Finish(State.SUCCEEDED)
        if claims:
            store.apply(
                [Settle(run.run_id, run.claim_number, "returned", done, 0) for run in claims]
            )


if __name__ == "__main__":
    main()

"""A separate producer process, which records every request before and after it is made."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from duly.task import Call
from duly.worker.process_lifetime import die_with_parent
from duly_prove.history import EnqueueRequest
from duly_prove.observation_log import FOLDER_VARIABLE
from duly_prove.process_starter import ProcessStarter, StartedProcess
from duly_prove.self_kill import arm
from duly_prove.workload import app, notify, observations, order

PROGRAM = "duly_prove.producer_process"


def start_producer(
    starter: ProcessStarter,
    url: str,
    folder: Path,
    point: str,
    count: int,
    *,
    program: str = PROGRAM,
) -> StartedProcess:
    """Start a process that enqueues `count` runs one by one and dies at a fault point."""
    return starter.start(
        program,
        [str(starter.parent), point, str(count)],
        {"DULY_URL": url, FOLDER_VARIABLE: str(folder)},
        stdin=subprocess.DEVNULL,
    )


def main() -> None:
    """Enqueue until killed."""
    parent, point, count = sys.argv[1:]
    die_with_parent(int(parent))
    arm(point, observations)
    for number in range(int(count)):
        task = (order, notify)[number % 2]
        call: Call[Any] = task.call(number, 1)
        run_id, name = call.op.run_id, call.op.task
        observations.request(EnqueueRequest("invoked", run_id, name))
        app.enqueue_many([call])
        observations.request(EnqueueRequest("accepted", run_id, name))


if __name__ == "__main__":
    main()

"""The supervisor process of a tree: the same as `duly worker`, with observations and faults."""

import json
import os
import signal
import sys
from pathlib import Path

from duly.events import EventBus
from duly.settings import WorkerSettings
from duly.worker import supervisor
from duly.worker.process_lifetime import die_with_parent
from duly_prove.observation_log import ObservationLog
from duly_prove.process_tree import TREE_VARIABLE
from duly_prove.self_kill import arm
from duly_prove.spare_processes import SpareProcesses

SUPERVISOR_POINT_VARIABLE = "DULY_PROVE_KEEPER_POINT"


def main() -> int:
    """Supervise workers until told to stop. The tree dies with the program that runs the trial."""
    options = json.loads(os.environ.pop(TREE_VARIABLE))
    die_with_parent(options["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reserve = SpareProcesses(options["reserve"], Path(options["folder"]))
    observations = ObservationLog.of_this_process()
    bus = EventBus()
    bus.subscribe(observations.event, successes=False)
    point = os.environ.pop(SUPERVISOR_POINT_VARIABLE, None)
    if point is not None:
        arm(point, observations)
    settings = WorkerSettings(
        concurrency=options["concurrency"],
        async_limit=options["async_limit"],
        lease=options["lease"],
        beat=options["beat"],
        grace=options["grace"],
    )
    return supervisor.run(
        options["app"],
        options["url"],
        settings,
        processes=options["processes"],
        bus=bus,
        start=reserve.start,
    )


if __name__ == "__main__":
    sys.exit(main())

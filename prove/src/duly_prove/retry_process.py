"""A separate process that retries all dead letters at a rate."""

import json
import subprocess
import sys
from pathlib import Path

from duly.api.runs import Filter
from duly.clock import monotonic
from duly.worker.process_lifetime import die_with_parent
from duly_prove.observation_log import FOLDER_VARIABLE
from duly_prove.process_starter import ProcessStarter, StartedProcess
from duly_prove.self_kill import arm
from duly_prove.workload import app, fragile, observations


def start_retry_process(
    starter: ProcessStarter, url: str, folder: Path, rate: float, point: str = ""
) -> StartedProcess:
    """Start a process that retries dead letters, and dies at a fault point if one is given."""
    return starter.start(
        "duly_prove.retry_process",
        [str(starter.parent), str(rate), point],
        {"DULY_URL": url, FOLDER_VARIABLE: str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


def main() -> None:
    """Retry until no dead letter is left."""
    parent, rate, point = sys.argv[1:]
    die_with_parent(int(parent))
    if point:
        arm(point, observations)
    began_at = monotonic()
    which = Filter(task=fragile.name)
    bulk = app.dead.retry(which=which, rate=float(rate), actor="prove", reason="address known")
    sys.stdout.write(json.dumps([bulk.done, bulk.skipped, monotonic() - began_at]))


if __name__ == "__main__":
    main()

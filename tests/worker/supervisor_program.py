"""The keeper of a tree: `duly worker` without its command line, and with less patience."""

import json
import logging
import sys
import time
from pathlib import Path

from duly import faultpoints
from duly.events import EventBus
from duly.observe.log_queue import LogQueue
from duly.settings import WorkerSettings
from duly.worker import supervisor


def wait_while(path: Path) -> None:
    """Wait as long as there is a file."""
    while path.exists():
        time.sleep(0.02)


def main() -> int:
    """Keep workers until told to stop."""
    app, url, given = sys.argv[1:]
    options = json.loads(given)
    supervisor._PATIENCE_SECONDS = 0.5
    stuck = options.pop("stuck_beats", None)
    if stuck is not None:
        faultpoints.arm("beat.before_write", lambda: wait_while(Path(stuck)))
    logging.basicConfig(level="INFO")
    processes, drain = options.pop("processes"), options.pop("drain")
    options["queues"] = tuple(map(tuple, options.get("queues", ())))
    bus = EventBus(LogQueue())
    settings = WorkerSettings(**options)
    return supervisor.run(app, url, settings, processes=processes, drain=drain, bus=bus)


if __name__ == "__main__":
    sys.exit(main())

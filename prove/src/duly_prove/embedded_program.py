"""A worker inside a program, as in a web process: `python -m duly_prove.embedded_program`.

Nothing terminates it when it is frozen past its lease. It may be asked to stop between the end of a
task and its record. When it continues, its write is late, and only the fence prevents it.
"""

import json
import os
import signal
import sys
import threading

from duly.worker.process_lifetime import die_with_parent
from duly_prove.freeze_workload import FreezingDuly
from duly_prove.process_tree import TREE_VARIABLE
from duly_prove.workload import app as workload
from duly_prove.workload import observations


def main() -> int:
    """Work until told to stop."""
    options = json.loads(os.environ.pop(TREE_VARIABLE))
    die_with_parent(options["parent"])
    ended = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    app = FreezingDuly(observations, os.getpid())
    app.registry, app.bus = workload.registry, workload.bus
    settings = {name: options[name] for name in ("lease", "beat", "grace")}
    limits = {name: options[name] for name in ("concurrency", "async_limit")}
    with app.worker(**limits, **settings):
        ended.wait()
    app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

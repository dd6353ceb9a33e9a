"""`python -m benchmarks.supervisor URL`: the same as `duly worker benchmarks.tasks:app`."""

import os
import sys

from benchmarks import counting
from duly.settings import WorkerSettings
from duly.worker import supervisor
from duly.worker.process_lifetime import die_with_parent

if __name__ == "__main__":
    die_with_parent(os.getppid())
    counting.count_if_asked()
    sys.exit(supervisor.run("benchmarks.tasks:app", sys.argv[1], WorkerSettings()))

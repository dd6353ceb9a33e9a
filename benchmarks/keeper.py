"""`python -m benchmarks.keeper URL`: what `duly worker benchmarks.tasks:app` does, all defaults."""

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

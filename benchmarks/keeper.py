"""`python -m benchmarks.keeper URL`: what `duly worker benchmarks.tasks:app` does, all defaults."""

import os
import sys

from benchmarks import counting
from duly.runtime import keeper
from duly.runtime.dying import die_with_parent
from duly.settings import WorkerSettings

if __name__ == "__main__":
    die_with_parent(os.getppid())
    counting.count_if_asked()
    sys.exit(keeper.run("benchmarks.tasks:app", sys.argv[1], WorkerSettings()))

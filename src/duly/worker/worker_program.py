"""The program of a worker process under a keeper, `python -m duly.worker.worker_program`.

What it runs is in `watch`; here is what the keeper and it agree on, who runs no tasks itself.
"""

import os

from duly.worker.garbage_collection import collect_rarely

ENVIRONMENT = "DULY_CHILD"
STARTED_BY = "DULY_STARTED_BY"
"""Names the worker, its keeper and the subprocess of a body in the environment of everything that
they start. By that name a process is found, and ended, that has left its process group."""
NOT_FOUND = 64
CANNOT_START = 78
CANNOT_LOAD = {NOT_FOUND: 2, CANNOT_START: 1}
"""The exit statuses (EX_USAGE, EX_CONFIG) that tell the keeper that trying again is useless, each
with its own status then: a usage error, or a failure."""
DRAIN_LOOK_SECONDS = 0.1
"""How often workers that drain, and their supervisor, look whether anything is left to do."""
LOST_A_THREAD = 70
"""The exit status (EX_SOFTWARE) of a child that could get no more work done."""
TRY_AGAIN = 75
"""The exit status (EX_TEMPFAIL) of a child that met an outage; the keeper starts another."""


def started_by(*names: str) -> str:
    """Return a value of `STARTED_BY` with these names; those that this process has stay there."""
    return " ".join(filter(None, (os.environ.get(STARTED_BY), *names)))


def main() -> None:
    """Load what a worker needs, and run one."""
    collect_rarely()
    # The garbage collector had to be told before.
    from duly.worker import worker_main  # noqa: PLC0415
    from duly.worker.process_lifetime import run_and_exit  # noqa: PLC0415

    run_and_exit(worker_main.main)


if __name__ == "__main__":
    main()

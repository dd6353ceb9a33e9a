"""A dashboard server in its own process, for tests to kill.

`python -m tests.dashboard.bulk_server URL` prints its address. DULY_FAULTPOINTS names the
point at which it is killed.
"""

import sys
from contextlib import closing

from duly import faultpoints
from duly.dashboard import bulk_executor, server
from tests.dashboard.conftest import opened
from tests.dashboard.shop import Shop

LEASE = 2.0
"""Short, so that a test need not wait long for another process to take over."""

if __name__ == "__main__":
    bulk_executor.BULK_LEASE_SECONDS = LEASE
    bulk_executor.BULK_LOOK_SECONDS = 0.1
    faultpoints.arm_from_environment()
    pages = opened(Shop(sys.argv[1]).app, write=True)
    with closing(server.listen("127.0.0.1", 0)) as socket:
        sys.stdout.write(f"http://127.0.0.1:{socket.getsockname()[1]}\n")
        sys.stdout.flush()
        server.serve(pages, socket)

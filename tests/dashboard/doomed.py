"""A worker in its own process, for tests to kill: `python -m tests.dashboard.doomed URL`."""

import sys
import threading

from tests.dashboard.shop import Shop

LEASE, BEAT = 1.2, 0.3
"""Short, so that a test need not wait long for its end."""

if __name__ == "__main__":
    with Shop(sys.argv[1]).app.worker(lease=LEASE, beat=BEAT):
        threading.Event().wait()

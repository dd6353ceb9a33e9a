"""A process that enters a key: `python -m tests.guard.body URL KEY LOG HOW`.

It appends its notes to the file LOG, which all processes share. A body with HOW "quick" ends
immediately; a body with HOW "linger" ends when the file LOG.gate exists.
"""

import os
import sys
import time
from pathlib import Path

from duly import StoreUnavailable
from duly.guard import Busy, ClaimLost, Guard

LEASE = 1.5


def main(url: str, key: str, log: str, how: str) -> None:
    """Enter the key until this process or another has finished the body."""
    guard = Guard(url, lease=LEASE)
    while True:
        try:
            with guard.once(key) as claim:
                if not claim.first:
                    note(log, f"found {claim.result}")
                    return
                note(log, f"began {claim.fence}")
                while how == "linger" and not Path(f"{log}.gate").exists():
                    time.sleep(0.02)
                claim.done(os.getpid())
                note(log, f"finished {claim.fence}")
                return
        except (Busy, StoreUnavailable):
            # A process frozen between two statements holds its row for at most ten seconds.
            time.sleep(0.05)
        except ClaimLost:
            note(log, "lost")
            return


def note(log: str, text: str) -> None:
    """Append one line in one write."""
    place = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(place, f"{os.getpid()} {text}\n".encode())
    os.close(place)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A process that enters a key: `python -m tests.guard.body URL KEY LOG HOW`.

It notes what it does in a file that every process appends to. `HOW` is how its body goes: "quick",
or "linger", which ends when the file LOG.gate is there.
"""

import os
import sys
import time
from pathlib import Path

from duly import StoreUnavailable
from duly.guard import Busy, ClaimLost, Guard

LEASE = 1.5


def main(url: str, key: str, log: str, how: str) -> None:
    """Enter the key until it is done, by us or by another."""
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
            # One that is frozen between two statements holds its row for ten seconds at most.
            time.sleep(0.05)
        except ClaimLost:
            note(log, "lost")
            return


def note(log: str, text: str) -> None:
    """Append a line, whole."""
    place = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(place, f"{os.getpid()} {text}\n".encode())
    os.close(place)


if __name__ == "__main__":
    main(*sys.argv[1:])

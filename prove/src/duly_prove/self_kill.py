"""Processes that kill themselves at a fault point, and record it first."""

import fcntl
import os
import signal
from pathlib import Path

from duly import faultpoints
from duly_prove.observation_log import ObservationLog


def arm(text: str, observations: ObservationLog) -> None:
    """Kill this process at the n-th hit of a point, given as `name@n`."""
    point, _, nth = text.partition("@")
    left = int(nth or 1)

    def strike() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            observations.fault(point)
            os.kill(os.getpid(), signal.SIGKILL)

    faultpoints.arm(point, strike)


def take_next(plan: Path) -> str | None:
    """Remove and return the first line of a plan that several processes share."""
    with plan.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = file.read().splitlines()
        if not lines:
            return None
        file.seek(0)
        file.write("".join(f"{line}\n" for line in lines[1:]))
        file.truncate()
        return lines[0]

"""Named points in the engine at which tests inject faults: kill, stop, raise or wait.

They do nothing unless a test arms them, in this process by `arm` or in a child by the environment
variable `DULY_FAULTPOINTS` ("name=kill" or "name=kill@3" for the third hit; separated by commas).
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

Action = Callable[[], None]
StatementHook = Callable[[str], AbstractContextManager[None]]
"""Entered before and left after a statement, for tests that inject faults at every statement."""

_armed: dict[str, Action] = {}


class SimulatedCrash(BaseException):
    """Simulates the death of the process, in a test inside that process. No code may survive it."""


NAMES = (
    "enqueue.before_write",
    "enqueue.before_commit",
    "enqueue.after_commit",
    "claim.before_write",
    "claim.before_commit",
    "claim.after_commit",
    "settle.before_write",
    "settle.before_commit",
    "settle.after_commit",
    "recover.before_write",
    "recover.before_commit",
    "recover.after_commit",
    "operate.before_write",
    "operate.before_commit",
    "operate.after_commit",
    "beat.before_write",
    "beat.after_write",
    "attempt.before_body",
    "attempt.after_body",
    "transaction.before_settle",
    "transaction.before_commit",
    "transaction.after_commit",
)
"""The names follow one pattern, so `hit(f"{verb}.before_commit")` names one of these."""


def hit(name: str) -> None:
    """Run the armed action of this point. If nothing is armed, this costs one dict lookup."""
    if _armed:
        action = _armed.get(name)
        if action is not None:
            action()


def arm(name: str, action: Action) -> None:
    """Run `action` at every hit of `name`."""
    if name not in NAMES:
        message = f"there is no faultpoint {name!r}"
        raise ValueError(message)
    _armed[name] = action


def disarm(name: str | None = None) -> None:
    """Disarm one point, or all of them."""
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)


def arm_from_environment() -> None:
    """Arm the points that `DULY_FAULTPOINTS` names. Every worker child calls this once."""
    for item in filter(None, os.environ.get("DULY_FAULTPOINTS", "").split(",")):
        name, _, rest = item.partition("=")
        verb, _, nth = rest.partition("@")
        arm(name, _after(int(nth or 1), _ACTIONS[verb]))


def _after(count: int, strike: Action) -> Action:
    hits = 0

    def action() -> None:
        nonlocal hits
        hits += 1
        if hits == count:
            strike()

    return action


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_here() -> None:
    """Stop this process, and this thread at once. The signal may reach other threads later."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _hang() -> None:
    threading.Event().wait()


_ACTIONS: dict[str, Action] = {"kill": _kill, "stop": stop_here, "hang": _hang}

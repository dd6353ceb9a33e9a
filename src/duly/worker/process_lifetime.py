"""How a child process ends: not after its parent, nor after its program."""

import ctypes
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_FLUSH_SECONDS = 1.0


def exit_text(status: int) -> str:
    """Return how a process ended, given the status that `subprocess` returned."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # A real-time signal has no name.
        return f"was killed by signal {-status}"


def die_with_parent(parent: int) -> None:
    """On Linux, have the kernel send SIGKILL when the parent ends; end now if it has ended."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class ForkCounter:
    """Tells a process from those that it forks, without a system call for each look."""

    forks = 0
    """How often this process, or one before it, was forked since duly was imported. The number is
    another one in every process that this one forks."""

    @classmethod
    def note_fork(cls) -> None:
        """Count a fork, in the forked process."""
        cls.forks += 1


os.register_at_fork(after_in_child=ForkCounter.note_fork)


def exit_forked_process() -> NoReturn:
    """End this process, which a body has forked from the worker's.

    There the body left its own code, by a return or an error, and the runner's code would go on as
    a second worker with the same claims.
    """
    logging.getLogger("duly").error(
        "a process that a task forked returned from the task, so the process was ended: call "
        "os._exit() there, or use multiprocessing"
    )
    os._exit(1)


def run_and_exit(program: Callable[[], None]) -> NoReturn:
    """Run a program, and end with its status, whatever user code has left behind."""
    status = 1
    try:
        program()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - told, and by the status too
        traceback.print_exc()
    finally:
        exit_now(status)


def exit_now(status: int) -> NoReturn:
    """End without the interpreter's shutdown, which would wait for threads of user code."""
    try:
        # A pipe that is not read blocks.
        flushing = threading.Thread(target=_flush_streams, daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SECONDS)
    finally:
        os._exit(status)


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        # User code may have closed it, or put anything else in its place.
        with suppress(AttributeError, ValueError, OSError):
            stream.flush()

"""A child process that does not outlive its parent, nor its program."""

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


def die_with_parent(parent: int) -> None:
    """On Linux, have the kernel send SIGKILL when the parent ends; end now if it has ended."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class _ForkCounter:
    """Tells a process from those that it forks, without a system call for each look."""

    forks = 0
    """How often this process, or one before it, was forked since duly was imported."""

    @classmethod
    def note_fork(cls) -> None:
        cls.forks += 1


os.register_at_fork(after_in_child=_ForkCounter.note_fork)


def fork_count() -> int:
    """Return a number that is another one in every process that this one forks."""
    return _ForkCounter.forks


def exit_if_forked(forks: int) -> None:
    """End this process if a body forked it from the worker's, which counted so many forks.

    There the body left its own code, by a return or an error, and the runner's code would go on as
    a second worker with the same claims.
    """
    if _ForkCounter.forks != forks:
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

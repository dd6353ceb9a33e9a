"""Ties children to their keeper's word, in the kernel's hands.

A child whose keeper is frozen must end before others take over what it holds, and it may be frozen
itself, or its interpreter busy in one long call: it cannot see to it in time. So all children of a
keeper are tied to a pipe whose other end a small process of no other use holds; the kernel kills
that process when the keeper has not attended for too long, and them when the pipe is let go. Before
that, as long as it can, the process itself ends them and what has left their process groups.
"""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys

from duly.worker import watchdog_program

_IS_SUPPORTED = sys.platform == "linux"


class Watchdog:
    """What a keeper holds its children by; where the kernel cannot do it, nothing."""

    def __init__(self, tree: str) -> None:
        """Make one for the keeper of this name, which is in the environment of what it ends."""
        self._tree = tree
        self.end: int | None = None
        """The end of the pipe that children are to inherit."""
        self._process: subprocess.Popen[bytes] | None = None
        self._words = -1

    def renew(self) -> bool:
        """Start the process if it is not there, as after a freeze of the keeper; say whether."""
        if not _IS_SUPPORTED or (self._process is not None and self._process.poll() is None):
            return False
        self.close()
        self.end, held = os.pipe()
        theirs, self._words = os.pipe()
        os.set_blocking(self._words, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own file
                [sys.executable, "-I", "-S", watchdog_program.__file__, str(held), self._tree],
                stdin=theirs,
                pass_fds=(held,),
                start_new_session=True,
            )
        except OSError:
            os.close(self._words)
            os.close(self.end)
            self.end = None
            raise
        finally:
            os.close(theirs)
            os.close(held)
        return True

    def extend_until(self, until: float) -> None:
        """Let children live until then (monotonic) even if no further word comes."""
        if self._process is not None:
            # It may have ended, or be frozen over a full pipe; either way its time runs out.
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._words, watchdog_program.DEADLINE_MESSAGE.pack(until))

    def close(self) -> None:
        """Let go: whatever is tied here ends."""
        if self._process is None or self.end is None:
            return
        os.close(self._words)
        os.close(self.end)
        self._process.kill()
        self._process.wait()
        self._process = self.end = None


def attach_to_watchdog(end: int) -> None:
    """Have the kernel kill this process and its group when the tether is let go."""
    # The owner belongs to the open file, and the one that was inherited is everybody's.
    own = os.open(f"/proc/self/fd/{end}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.close(end)
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    # It may have been let go before.
    if select.select([own], [], [], 0)[0]:
        os.killpg(0, signal.SIGKILL)

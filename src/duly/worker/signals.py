"""Signals, for a main thread that only watches."""

import contextlib
import math
import os
import select
import signal
import socket
import threading

_STOPPING = frozenset({signal.SIGTERM, signal.SIGINT})


class Signals:
    """SIGTERM, SIGINT and SIGCONT as something the main thread can wait for.

    Only this process has them: a process that is forked from it, by a body, gets back the handlers
    that were there before, so that SIGTERM ends it.
    """

    def __init__(self) -> None:
        self._asked = 0
        self.last = int(signal.SIGTERM)
        """The signal that asked to stop last."""
        self._owner = os.getpid()
        self._masks = threading.local()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)  # noqa: FBT003 - the standard library's
        # Unlike `select`, it takes any number of a descriptor: an application may have many open.
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
        self._writer.setblocking(False)  # noqa: FBT003 - the standard library's
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._ask) for number in _STOPPING}
        # Only to wake up at once after a freeze, and look at the deadline first.
        for number in (signal.SIGCONT, signal.SIGCHLD):
            self._before[number] = signal.signal(number, lambda *_: None)
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork_in_parent,
            after_in_child=self._after_fork_in_child,
        )

    def wait(self, seconds: float) -> bool:
        """Wait for a signal; say whether one asked to stop since the last call."""
        self._poll.poll(math.ceil(seconds * 1000))
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)
        asked, self._asked = self._asked, 0
        return bool(asked)

    def _ask(self, number: int, _frame: object) -> None:
        self._asked += 1
        self.last = number

    def _before_fork(self) -> None:
        # Python drops signals that reach a forked process before its first turn, if there is a
        # handler for them. Those that are blocked wait until the handlers are restored.
        if os.getpid() == self._owner:
            self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)

    def _after_fork_in_parent(self) -> None:
        self._unblock()

    def _after_fork_in_child(self) -> None:
        # What a forked process forks in turn has the handlers that its parent has chosen.
        if hasattr(self._masks, "before"):
            signal.set_wakeup_fd(-1)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._unblock()

    def _unblock(self) -> None:
        before = self._masks.__dict__.pop("before", None)
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

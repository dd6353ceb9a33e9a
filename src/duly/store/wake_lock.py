"""A lock that one thread waits for and that any thread may release, also more than once.

It carries no state that an exception in another thread could spoil. So a thread that was woken
looks for itself whether it may continue, and a thread that waits looks now and then on its own.
"""

import threading


def new_wake_lock() -> threading.Lock:
    """Return a lock to wait for: `acquire` waits for the next `wake`."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def wake(lock: threading.Lock) -> None:
    """Wake the thread that waits for this lock, or the next one that will."""
    if lock.locked():
        try:  # noqa: SIM105 - called for each request of a commit, where `suppress` costs more
            lock.release()
        except RuntimeError:
            # Another thread has woken it in between.
            pass

"""A lock that one thread waits for and that any thread may release, even more than once.

It has no state that an exception in another thread could corrupt. So a thread that was woken checks
itself whether it may continue, and a waiting thread also checks from time to time.
"""

import threading


def new_wake_lock() -> threading.Lock:
    """Return a lock whose `acquire` waits for the next `wake`."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def wake(lock: threading.Lock) -> None:
    """Wake the thread that waits for this lock, or else the next thread that waits."""
    if lock.locked():
        try:  # noqa: SIM105 - called for each request of a commit, where `suppress` costs more
            lock.release()
        except RuntimeError:
            # Another thread has released the lock after the check.
            pass

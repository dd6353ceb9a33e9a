"""`app.lock`: a named lock that one process at a time holds, on any host.

A lock has an owner and a fence. It is renewed in the background while it is held, and only its
owner renews or releases it. Another owner gets it only after it was released or expired by the
store's clock. A process that is frozen past that time has lost the lock, and learns this
afterwards. The resource that the lock protects should check the fence, which only grows.
"""

from duly.locks.held_lock import HeldLock
from duly.locks.lock import Lock, LockHolders

__all__ = ["HeldLock", "Lock", "LockHolders"]

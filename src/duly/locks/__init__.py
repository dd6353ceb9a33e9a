"""`app.lock`: a named lock that one process at a time holds, on any host.

A lock has an owner and a fence. It is renewed in the background while it is held, changes hands
only when it was released or its time is over by the store's clock, and only its owner renews or
releases it. Whoever is frozen past that time has lost it, and is told so; what it protects should
check the fence, which only grows.
"""

from duly.locks.held_lock import HeldLock
from duly.locks.lock import Lock, LockHolders

__all__ = ["HeldLock", "Lock", "LockHolders"]

"""The guard: runs a function that another engine carries once per key."""

from duly.errors import Busy, ClaimLost, KeyConflict
from duly.guard.claim import GuardClaim
from duly.guard.guard import Guard
from duly.guard.keys import make_key

__all__ = ["Busy", "ClaimLost", "Guard", "GuardClaim", "KeyConflict", "make_key"]

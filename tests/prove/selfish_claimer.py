"""A claimer that counts only its own runs, and not other runs under the same limit."""

from duly.core.concurrency_limits import task_of
from duly.store.sqlite.claim import SqliteLimitedClaim
from duly_prove.claimer_process import main


def _selfish(self: SqliteLimitedClaim, lane: str) -> int:
    # A worker holds no runs when it claims.
    return self._limits.capacities[task_of(lane)]


SqliteLimitedClaim._room_in = _selfish

if __name__ == "__main__":
    main()

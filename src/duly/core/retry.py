"""How often and when a failed attempt is retried."""

import sys
from dataclasses import dataclass

from duly.errors import BadOption
from duly.limits import DELAY_SECONDS


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed run is retried, and after which delays.

    Args:
        limit: How many retries a run has after its first attempt. When none is left, the run ends
            as `failed`.
        base: Seconds until the first retry.
        factor: Each further delay is this many times as long as the one before, at least 1.
        max_delay: The longest delay, in seconds.
        jitter: Whether each delay is drawn from the upper half of its time. Otherwise a thousand
            runs that failed together would all retry at the same moment.
    """

    limit: int
    base: float = 1.0
    factor: float = 2.0
    max_delay: float = 3600.0
    jitter: bool = True

    def __post_init__(self) -> None:
        """Raise BadOption for values that make no sense."""
        if type(self.limit) is not int or self.limit < 0:
            message = f"retries must be a whole number of at least 0, not {self.limit!r}"
            raise BadOption(message)
        numbers = (self.base, self.factor, self.max_delay)
        meant = all(isinstance(each, int | float) for each in numbers) and (
            self.base >= 0 and self.factor >= 1 and 0 <= self.max_delay <= DELAY_SECONDS
        )
        if not meant:  # In this form it refuses NaN too: NaN compares false.
            message = f"Retry needs base >= 0, factor >= 1 and max_delay from 0 to {DELAY_SECONDS}"
            raise BadOption(message)

    def delay(self, retries_used: int, jitter: float) -> float:
        """Return the seconds to wait before the next try, given a random number from [0, 1)."""
        try:
            grown = float(self.factor) ** retries_used
        except OverflowError:
            grown = sys.float_info.max
        full = min(self.max_delay, self.base * grown)
        return full * (0.5 + jitter / 2) if self.jitter else full


NO_RETRIES = Retry(0)

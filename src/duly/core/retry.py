"""How often and when a failed attempt is retried."""

import sys
from dataclasses import dataclass

from duly.errors import BadOption
from duly.limits import DELAY_SECONDS


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed run is retried, after which delays, and after which exceptions.

    Args:
        limit: How many retries a run has after its first attempt. When none is left, the run ends
            as `failed`.
        base: Seconds until the first retry.
        factor: Each further delay is this many times as long as the one before, at least 1.
        max_delay: The longest delay, in seconds.
        jitter: Whether each delay is drawn from the upper half of its time. Otherwise a thousand
            runs that failed together would all retry at the same moment.
        on: The only exceptions that are retried. Empty means all, or none for a task with
            `on_crash="hold"`.
        give_up_on: Exceptions that are never retried, even if `on` includes them.
    """

    limit: int
    base: float = 1.0
    factor: float = 2.0
    max_delay: float = 3600.0
    jitter: bool = True
    on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()

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
        _check_exceptions("on", self.on)
        _check_exceptions("give_up_on", self.give_up_on)

    def delay(self, retries_used: int, jitter: float) -> float:
        """Return the seconds to wait before the next try, given a random number from [0, 1)."""
        try:
            grown = float(self.factor) ** retries_used
        except OverflowError:
            grown = sys.float_info.max
        full = min(self.max_delay, self.base * grown)
        return full * (0.5 + jitter / 2) if self.jitter else full


def _check_exceptions(name: str, given: object) -> None:
    """Refuse what is not a tuple of exceptions: otherwise it would only fail when a body raises."""
    if not isinstance(given, tuple) or not all(
        isinstance(each, type) and issubclass(each, BaseException) for each in given
    ):
        raise BadOption(f"{name} of a Retry must be a tuple of exception classes, not {given!r}")


NO_RETRIES = Retry(0)

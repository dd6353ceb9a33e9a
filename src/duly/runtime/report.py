"""What runners tell their worker."""

from collections.abc import Callable
from typing import NamedTuple

from duly.core.outcome import Outcome
from duly.runtime.hand import Held


class Ended(NamedTuple):
    """A body has ended."""

    held: Held
    outcome: Outcome
    seconds: float


Report = Callable[[list[Ended]], None]

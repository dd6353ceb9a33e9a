"""How many rows one write of a service takes, so that other writes of its process wait little."""

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from duly.clock import monotonic
from duly.store.group_commit import OpCutOff

AIM_SECONDS = 0.02
"""How much longer a batch should take than the quickest recent write of its kind."""
_RECENT = 32
"""How many writes back the quickest one is looked for. A server may become slower for good."""
_FIRST = 20
_SMALLER = 4
"""The divisor of a batch that the database cut off."""
_LEAST = 10
"""Only batches that the database cut off are followed by smaller ones than this."""

A = TypeVar("A")


class BatchSize:
    """The size of the batches of one service. It learns from how long they take."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = min(_FIRST, most)
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def write(self, act: Callable[[int], A], is_full: Callable[[A, int], bool]) -> tuple[A, bool]:
        """Write a batch. Return its answer, and whether there may be more to write.

        `act` gets the limit. It returns None if another worker has the duty. A batch that the
        database cut off is followed by a smaller one. A batch of one row is never cut off, so every
        call makes progress.
        """
        while True:
            limit, began = self.limit, monotonic()
            try:
                answer = act(limit)
            except OpCutOff:
                self.limit = max(1, limit // _SMALLER)
                continue
            if answer is None:
                return answer, False
            may_have_more = is_full(answer, limit)
            self._learn(monotonic() - began, may_have_more=may_have_more)
            return answer, may_have_more

    def _learn(self, seconds: float, *, may_have_more: bool) -> None:
        self._recent.append(seconds)
        for_rows = seconds - min(self._recent)
        if may_have_more or for_rows > AIM_SECONDS:
            fitting = self.limit * AIM_SECONDS / max(for_rows, AIM_SECONDS / 2)
            self.limit = min(max(min(_LEAST, self.limit), round(fitting)), self._most)

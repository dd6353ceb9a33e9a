"""Limits how many runs may wait in a queue.

An enqueue neither counts the runs nor writes a row that other enqueues write. A process reads the
size of a queue and uses it for a second. During that second it adds its own runs to the size. So a
queue can have a few more runs than its `max_size`: those that other processes add in that second.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from duly.clock import monotonic
from duly.errors import QueueFull, StoreError
from duly.store.ops.runs import Enqueue
from duly.store.protocol import Dialogue, ExternalStatement, Row
from duly.store.statements import Statements

_LOOK_SECONDS = 1.0
_UNBOUNDED_SECONDS = 5.0
"""How long to assume that a queue has no `max_size`."""
_PACE = 20
"""A full queue is counted again after this many times the time that the count took."""


class _KnownCapacity(NamedTuple):
    """A process's knowledge of one queue."""

    max_size: int | None
    size: int
    until: float
    """When to read the queue again, on the monotonic clock."""
    recount_at: float = 0.0
    """Before this time, the queue is not counted again even if it is full."""


class QueueCapacityCache:
    """A process's knowledge of the queues that it enqueues to: estimates, valid for a second."""

    def __init__(self, dialect: str, statements: Statements) -> None:
        self._dialect = dialect
        self._sql = statements
        self._known: dict[str, _KnownCapacity] = {}

    def fit(self, ops: Sequence[Enqueue]) -> bool:
        """Return whether runs are known to fit, without a read. If so, they count from now on."""
        now = monotonic()
        if len(ops) == 1:
            known = self._known.get(ops[0].queue)
            if known is not None and known.max_size is None and now < known.until:
                return True
        wanted = _wanted(ops)
        for queue, number in wanted.items():
            known = self._known.get(queue)
            if known is None or now >= known.until or _overflows(known, number):
                return False
        for queue, number in wanted.items():
            self._add(queue, number)
        return True

    def forget(self) -> None:
        """Forget all sizes, since a queue was changed."""
        self._known.clear()

    def check(self, ops: Sequence[Enqueue]) -> Dialogue[None]:
        """Read the sizes, and raise QueueFull if some of the runs do not fit.

        If all of them fit, they count from now on; otherwise none of them counts.
        """
        wanted = _wanted(ops)
        new = {}
        for queue, number in wanted.items():
            known = yield from self._look(queue, number)
            new[queue] = number
            if _overflows(known, number):
                keyed = [op for op in ops if op.queue == queue and op.key is not None]
                new[queue] -= yield from self._count_known(keyed)
            if known.max_size is not None and new[queue] and _overflows(known, new[queue]):
                raise QueueFull(queue, known.max_size)
        for queue, number in new.items():
            self._add(queue, number)

    def _look(self, queue: str, number: int) -> Dialogue[_KnownCapacity]:
        began = monotonic()
        known = self._known.get(queue)
        if (
            known is not None
            and began < known.until
            and (not _overflows(known, number) or began < known.recount_at)
        ):
            return known
        row = yield self._statement("max_size", queue=queue)
        if row is None:
            known = _KnownCapacity(None, 0, began + _UNBOUNDED_SECONDS)
        else:
            counted = yield self._statement("size", queue=queue, limit=row[0])
            ended = monotonic()
            pace = ended + _PACE * (ended - began)
            known = _KnownCapacity(
                row[0], counted[0] if counted else 0, ended + _LOOK_SECONDS, pace
            )
        self._known[queue] = known
        return known

    def _count_known(self, ops: Sequence[Enqueue]) -> Dialogue[int]:
        """Return how many calls would only find an existing run."""
        found = 0
        for op in ops:
            assert op.key is not None  # noqa: S101 - the caller sorted them
            for name in (op.task, *op.key.other_names):
                holder = yield self._statement("key_in_force", task=name, key=op.key.text)
                if holder is not None:
                    found += 1
                    break
        return found

    def _statement(self, name: str, **parameters: str | int) -> ExternalStatement:
        return ExternalStatement(self._dialect, self._sql[name], parameters)

    def _add(self, queue: str, number: int) -> None:
        known = self._known.get(queue)
        if known is not None and known.max_size is not None:
            self._known[queue] = known._replace(size=known.size + number)


def _wanted(ops: Sequence[Enqueue]) -> dict[str, int]:
    """Return the number of runs for each queue, without those that wait for their time."""
    return Counter(op.queue for op in ops if not op.delay and op.at is None)


def _overflows(known: _KnownCapacity, number: int) -> bool:
    return known.max_size is not None and known.size + number > known.max_size


def run_read_dialogue(
    dialogue: Dialogue[None], query: Callable[[str, Any], list[tuple[Any, ...]]]
) -> None:
    """Run a dialogue by a store's own reads. If a read fails, no run is refused."""
    row: Row = None
    with suppress(StopIteration, StoreError):
        while True:
            statement = dialogue.send(row)
            found = query(statement.sql, dict(statement.parameters))
            row = found[0] if found else None

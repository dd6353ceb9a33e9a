"""Deletes old runs and adds up old counts, in small batches."""

from duly.clock import monotonic
from duly.core.amounts import bounded_microseconds
from duly.limits import COUNT_FOLD_ROWS, TICK_BATCH
from duly.settings import WorkerSettings
from duly.store.ops.upkeep import DutyTurn, Prune, RollUpCounts
from duly.store.protocol import Store
from duly.worker.services.batch_size import BatchSize
from duly.worker.services.duty_intervals import CONTINUATION_SECONDS, SHORTER

_PRUNE_PAUSE = 120.0
_PRUNE_PAUSES = 3.0
"""A prune pauses this many times as long as it took, so that other writes have most of the time."""
_SHORTEST_PAUSE = 0.02
_LONGEST_PAUSE = 0.1
"""The bounds of that pause."""


class Pruner:
    """Deletes what is over after its time, which is longer for dead letters and for acts."""

    name = "prune"

    def __init__(self, store: Store, settings: WorkerSettings) -> None:
        self._store = store
        self._op = Prune(
            older_than=bounded_microseconds(settings.retention),
            dead_older_than=bounded_microseconds(settings.dead_retention),
            acts_older_than=bounded_microseconds(settings.act_retention),
            limit=TICK_BATCH,
        )
        self._prunes = BatchSize(TICK_BATCH)
        self._folds = BatchSize(COUNT_FOLD_ROWS)
        # Workers with other settings delete other runs, so that is another duty.
        kept = (settings.retention, settings.dead_retention, settings.act_retention)
        self._duty = f"prune {kept}"
        self._is_done = True

    def tick(self) -> float:
        """Delete one bounded piece, and add up one of what counts the rest."""
        turn = DutyTurn(
            self._duty, SHORTER * _PRUNE_PAUSE if self._is_done else CONTINUATION_SECONDS
        )
        began = monotonic()
        # A run may have thousands of log lines and steps.
        pruned, left_some = self._prunes.write(
            lambda limit: self._store.do(self._op._replace(turn=turn, limit=limit)),
            lambda pruned, limit: pruned is not None and pruned.most >= limit,
        )
        took = monotonic() - began
        _, left_counts = self._folds.write(
            lambda limit: self._store.do(RollUpCounts(limit, turn._replace(duty="fold"))),
            lambda folded, limit: folded is not None and folded >= limit,
        )
        if pruned is not None:
            self._op = self._op._replace(position=pruned.position)
        self._is_done = not left_some and not left_counts
        if self._is_done:
            return _PRUNE_PAUSE
        return max(_SHORTEST_PAUSE, min(_PRUNE_PAUSES * took, _LONGEST_PAUSE))

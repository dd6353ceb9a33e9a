"""The reads that are different on SQLite."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from duly.clock import Clock
from duly.core.diagnosis import Diagnosis
from duly.core.record import WorkerRecord
from duly.store.inspector import SqlInspector
from duly.store.ops.runs import Enqueue
from duly.store.queue_capacity import QueueCapacityCache, run_read_dialogue
from duly.store.sqlite import diagnostics
from duly.store.sqlite.clock_readings import read_clocks
from duly.store.sqlite.enqueue import SQL as ENQUEUE
from duly.store.sqlite.transaction import encoded, script
from duly.store.transaction import Row


class SqliteInspector(SqlInspector):
    """The reads of a store on SQLite, which executes them in `_read`."""

    path: Path
    _clock: Clock

    def _read(self, sql: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Execute a statement that only reads."""
        raise NotImplementedError

    def _query(self, name: str, /, **parameters: Any) -> list[Row]:  # noqa: ANN401 - see the base class
        (part,) = script(name)
        return self._read(part.sql, encoded(parameters))

    def _with_clocks(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Add `:now`, `:uptime` and `:boot`, as a transaction does."""
        return {**parameters, **read_clocks(self._clock)._asdict()}

    def now(self) -> int:
        """Return the wall time of this host. SQLite has no clock of its own."""
        return self._clock.now()

    def _workers(self, worker_id: str | None) -> list[WorkerRecord]:
        now = self.now()
        return [
            worker._replace(seen_at=self._last_seen(worker)).as_of(now)
            for worker in super()._workers(worker_id)
        ]

    def _last_seen(self, worker: WorkerRecord) -> int:
        """Return the time of a worker's last heartbeat."""
        return worker.seen_at

    @cached_property
    def queue_capacity(self) -> QueueCapacityCache:
        """The sizes of queues as this process last read them."""
        return QueueCapacityCache("sqlite", ENQUEUE)

    def check_queue_capacity(self, ops: Sequence[Enqueue]) -> None:
        """Raise QueueFull if runs do not fit into their queues, as far as this process knows."""
        run_read_dialogue(self.queue_capacity.check(ops), self._read)

    def find_oldest_transaction(self) -> None:
        """Return None. SQLite keeps no dead rows for open transactions."""

    def diagnose(self) -> list[Diagnosis]:
        """Return the state of the engine and of its settings."""
        return diagnostics.diagnose(self._read, self.path)

    def check_integrity(self) -> list[Diagnosis]:
        """Return the result of SQLite's integrity check of the file."""
        return diagnostics.check_integrity(self._read)

    def back_up(self, file: Path) -> None:
        """Write a copy of the current file. Workers can write during the copy."""
        diagnostics.back_up(self._read, file)

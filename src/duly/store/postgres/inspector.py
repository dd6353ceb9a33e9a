"""The reads that differ on PostgreSQL."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from duly.core.diagnosis import Diagnosis
from duly.core.record import OpenTransaction
from duly.store.inspector import SqlInspector
from duly.store.ops.runs import Enqueue
from duly.store.postgres import diagnostics
from duly.store.postgres.enqueue import SQL as ENQUEUE
from duly.store.postgres.transaction import encoded, statement_text
from duly.store.queue_capacity import QueueCapacityCache, run_read_dialogue
from duly.store.read_deadline import seconds_left
from duly.store.transaction import Row

ENGINE_READS = {
    "inspect.peek": "claim",
    "inspect.cancel_requests": "work",
    "inspect.now": "work",
    "inspect.schema": "work",
    "inspect.workers": "work",
    "recover.peers": "work",
    "schedules.due": "work",
    "schedules.failures": "work",
    "schedules.ahead": "work",
    "schedules.next_schedules": "work",
    "schedules.schedules": "work",
}
"""The short reads of the engine itself, and the connections on which it reads them. A peek is slow
when claims are slow, because it looks where they look."""


class PostgresInspector(SqlInspector):
    """The reads of a store on PostgreSQL, which executes them in `_read`."""

    is_pooled = False
    """Whether connections go through a pooler that shares them."""

    def _read(
        self, sql: str, parameters: Mapping[str, Any], *, prepare: bool | None = None
    ) -> list[Row]:
        """Execute a statement that only reads."""
        raise NotImplementedError

    def _read_for_engine(
        self, connection: str, sql: str, parameters: Mapping[str, Any]
    ) -> list[Row]:
        """Execute a short read on a connection that the process has for its writes."""
        raise NotImplementedError

    def _query(self, name: str, /, **parameters: Any) -> list[Row]:  # noqa: ANN401 - see the base class
        connection = ENGINE_READS.get(name)
        if connection is None or seconds_left() is not None:
            return self._read(statement_text(name), encoded(parameters))
        return self._read_for_engine(connection, statement_text(name), encoded(parameters))

    def _search(self, name: str, /, **parameters: Any) -> list[Row]:  # noqa: ANN401 - see the base class
        # The plan of a prepared statement could not depend on which filters are NULL.
        return self._read(statement_text(name), encoded(parameters), prepare=False)

    def now(self) -> int:
        """Return the wall time of the server."""
        ((now,),) = self._query("inspect.now")
        return int(now)

    @cached_property
    def queue_capacity(self) -> QueueCapacityCache:
        """The sizes of queues as this process last read them."""
        return QueueCapacityCache("postgresql", ENQUEUE)

    def check_queue_capacity(self, ops: Sequence[Enqueue]) -> None:
        """Raise QueueFull if runs do not fit into their queues, as far as this process knows."""
        run_read_dialogue(self.queue_capacity.check(ops), self._read_capacity)

    def _read_capacity(self, sql: str, parameters: Mapping[str, Any]) -> list[Row]:
        if sql == ENQUEUE["size"]:
            # This may count a million runs.
            return self._read(sql, parameters)
        return self._read_for_engine("work", sql, parameters)

    def find_oldest_transaction(self) -> OpenTransaction | None:
        """Return the transaction that has prevented the removal of dead rows for longest."""
        return diagnostics.find_oldest_transaction(self._read)

    def diagnose(self) -> list[Diagnosis]:
        """Return the state of the server and of its settings."""
        return diagnostics.diagnose(self._read, is_pooled=self.is_pooled)

    def check_integrity(self) -> list[Diagnosis]:
        """Return the indexes that are broken."""
        return diagnostics.check_integrity(self._read)

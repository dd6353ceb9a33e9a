"""The parts of an application that the dashboard uses: reads and operator actions.

`Duly` implements them. The pages use nothing else of it: no worker, no tables, no statements.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from duly.api.bulk_actions import BulkActionRequest, BulkPage
from duly.api.schedule_views import FiringView, ScheduleView
from duly.core.record import BulkAction, RunRecord
from duly.core.why import Reason
from duly.registry import Definition
from duly.store.reads import Inspector

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class TaskLookup(Protocol):
    """The tasks whose code this process has."""

    def get(self, name: str) -> Definition: ...
    def find(self, name: str) -> Definition | None: ...
    def definitions(self) -> tuple[Definition, ...]: ...


class RunHandle(Protocol):
    """One run."""

    id: str

    @property
    def record(self) -> RunRecord: ...
    def why(self) -> Reason:
        """Return why the run is not running."""
        ...


class RunOperations(Protocol):
    """Operator actions on runs."""

    def get(self, run_id: str) -> RunHandle: ...
    def cancel(self, run_id: str, *, actor: str, reason: str) -> str: ...
    def reschedule(
        self,
        run_id: str,
        *,
        delay: float | None,
        at: datetime | None,
        priority: int | None,
        queue: str | None,
        actor: str,
        reason: str,
    ) -> RunHandle: ...
    def retry(
        self,
        run_id: str,
        *,
        actor: str,
        reason: str,
        arguments: Arguments | None = None,
        from_step: str | None = None,
    ) -> RunHandle: ...
    def resolve(
        self,
        run_id: str,
        *,
        done: bool,
        result: object,
        step: str,
        actor: str,
        reason: str,
    ) -> RunHandle: ...


class DeadLetterOperations(Protocol):
    """Operator actions on dead letters."""

    def discard(self, run_ids: str, *, actor: str, reason: str) -> object: ...


class BulkOperations(Protocol):
    """Operator actions on many runs."""

    def start(self, asked: BulkActionRequest, *, owner: str) -> str: ...
    def take_over(self, owner: str, *, lease: float) -> Sequence[str]: ...
    def advance(self, act: BulkAction, page: BulkPage) -> bool: ...
    def fail(self, act: BulkAction, error: str) -> bool: ...


class QueueOperations(Protocol):
    """Operator actions on queues."""

    def pause(self, name: str, *, actor: str, reason: str) -> None: ...
    def resume(self, name: str, *, actor: str, reason: str) -> None: ...
    def limit(self, name: str, limit: int | None, *, actor: str, reason: str) -> None: ...


class ScheduleReads(Protocol):
    """Schedules with descriptions in words, and their instants."""

    def page(self, after: str, limit: int) -> Sequence[ScheduleView]: ...
    def get(self, name: str) -> ScheduleView: ...
    def next(self, name: str, count: int) -> Sequence[datetime]: ...
    def firings(self, name: str, *, limit: int) -> Sequence[FiringView]: ...


class ScheduleOperations(ScheduleReads, Protocol):
    """Operator actions on schedules."""

    def pause(self, name: str, *, actor: str, reason: str) -> None: ...
    def resume(self, name: str, *, actor: str, reason: str) -> None: ...
    def run_now(self, name: str, *, actor: str, reason: str) -> RunHandle: ...
    def backfill(
        self, name: str, start: datetime, end: datetime, *, actor: str, reason: str
    ) -> Sequence[RunHandle]: ...


class SessionOperations(Protocol):
    """The sessions that were signed out."""

    def end(self, session: str, *, actor: str) -> None: ...
    def has_ended(self, session: str) -> bool: ...


class Operations(Protocol):
    """All operator actions."""

    @property
    def runs(self) -> RunOperations: ...
    @property
    def dead(self) -> DeadLetterOperations: ...
    @property
    def bulk(self) -> BulkOperations: ...
    @property
    def queues(self) -> QueueOperations: ...
    @property
    def schedules(self) -> ScheduleOperations: ...


class Application(Operations, Protocol):
    """The application that a dashboard shows."""

    @property
    def store(self) -> Inspector:
        """The store, for reading."""
        ...

    @property
    def registry(self) -> TaskLookup: ...
    @property
    def sessions(self) -> SessionOperations: ...

"""The databases on which figures are measured, and their bare loops.

A bare loop runs the statements of the store, from the same files, directly through the driver.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from duly.store.ops.runs import ClaimRuns, Enqueue

PILES = ("finished", "not due", "unregistered")
"""The kinds of runs in a store that should not slow down a claim."""

Cost = dict[str, int]
"""The cost of one claim by unit: pages or steps that it reads."""


class Bare(Protocol):
    """One connection of the bare driver to one database that has duly's tables."""

    def parameters(self, ops: Sequence[Enqueue]) -> list[Any]:
        """Return the parameters of `insert_one` for each op."""
        ...

    def insert_one(self, parameters: Any) -> None:  # noqa: ANN401 - as the driver wants them
        """Insert one run in one commit."""
        ...

    def insert_many(self, ops: Sequence[Enqueue]) -> None:
        """Insert runs in one commit."""
        ...

    def drain(self, worker_id: str, task: str, *, batch: int) -> None:
        """Claim and finish batches until nothing is ready."""
        ...

    def is_drained(self) -> bool:
        """Return whether no run is ready or running."""
        ...

    def settle_rate(self) -> float:
        """Return the runs settled per second between the first and the last settle."""
        ...

    def runs_per_settle(self) -> float:
        """Return the average number of runs per settle."""
        ...

    def results(self, task: str) -> list[str]:
        """Return the stored results of a task's runs."""
        ...

    def pile_up(self, what: str, count: int) -> None:
        """Insert runs that no claim should notice, or schedules that are not due."""
        ...

    def claim_cost(self, op: ClaimRuns) -> Cost:
        """Return the cost of one claim, and roll it back."""
        ...


class StatementCount(Protocol):
    """Counts the statements of a worker that is started with `environment`."""

    method: str
    environment: dict[str, str]

    def begin(self) -> None:
        """Count from now on."""
        ...

    def end(self) -> list[str]:
        """Return the statements since `begin`."""
        ...


class Database(Protocol):
    """One kind of database."""

    name: str
    described: str

    def fresh(self) -> AbstractContextManager[str]:
        """Yield the URL of a new store with duly's tables. It is removed afterwards."""
        ...

    def bare(self, url: str) -> AbstractContextManager[Bare]:
        """Open a bare connection."""
        ...

    def counting(self, url: str) -> AbstractContextManager[StatementCount]:
        """Prepare to count the statements of a worker on this store."""
        ...

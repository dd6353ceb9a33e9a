"""Prevents a Celery worker from starting without a ledger that keeps its keys."""

from typing import Any

from celery import bootsteps

from duly.errors import OUTAGES
from duly.integrations.celery.app import guard_of
from duly.integrations.celery.ledger import LedgerNotConfigured


class LedgerStep(bootsteps.StartStopStep):
    """Find the ledger before the worker connects, and open it once the broker answers."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **options: Any) -> None:  # noqa: ANN401 - Celery's own
        super().__init__(consumer, **options)
        try:
            self._guard = guard_of(consumer.app)
        except LedgerNotConfigured as error:
            # Celery would print a traceback for any other exception.
            raise SystemExit(str(error)) from error

    def start(self, consumer: Any) -> None:  # noqa: ANN401, ARG002 - Celery's own
        """Open the ledger, which fails if the broker's Redis evicts keys."""
        if self._guard.on_eviction != "refuse":
            return
        try:
            self._guard.call_ledger(lambda ledger: ledger.notices)
        except OUTAGES as outage:
            # Celery reconnects to its broker after a ConnectionError.
            raise ConnectionError(str(outage)) from outage

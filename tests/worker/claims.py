"""Claims and definitions made by hand, for tests of the worker's parts."""

from typing import Any

from duly.app import define
from duly.clock import new_id
from duly.core.record import Claim
from duly.registry import Definition
from duly.worker.inflight import InFlightClaim


def nothing() -> None:
    """A body that does nothing."""


async def nothing_async() -> None:
    """A coroutine that does nothing."""


def definition(*, loop: bool = False, **options: Any) -> Definition:
    """Define a task that does nothing."""
    return define(nothing_async if loop else nothing, **{"name": "task"} | options)


def claim(**fields: Any) -> Claim:
    """Make a claim with everything that a test does not care about."""
    usual = {
        "run_id": new_id(),
        "claim_number": 1,
        "task": "task",
        "queue": "default",
        "lane": "thread",
        "priority": 0,
        "due_at": 0,
        "attempt": 1,
        "retries_used": 0,
        "crashes": 0,
        "generation": 1,
        "keyed": False,
        "tags": None,
        "arguments": "[[],{}]",
    }
    return Claim(**usual | fields)


def held(task: Definition | None = None, **fields: Any) -> InFlightClaim:
    """Make a claim in hand."""
    return InFlightClaim(claim(**fields), task or definition(), 0.0)

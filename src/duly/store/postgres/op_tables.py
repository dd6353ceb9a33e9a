"""Which function carries out an op."""

from collections.abc import Callable
from typing import Any

from duly.store.ops.upkeep import RegisterWorker, Tick
from duly.store.postgres import maintenance
from duly.store.postgres.connection import PostgresSession

Verb = Callable[[PostgresSession, Any], Any]

OPERATIONS: dict[type, Verb] = {
    RegisterWorker: maintenance.register,
    Tick: maintenance.tick,
}

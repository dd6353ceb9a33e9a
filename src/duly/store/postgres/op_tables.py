"""Which function carries out an op."""

from collections.abc import Callable
from typing import Any

from duly.store.ops.carriers import HandOver, PostponeHandOver, RerouteRuns
from duly.store.ops.steps import (
    BeginStep,
    EndStep,
    ForgetStep,
    RecheckWaits,
    WakeRuns,
)
from duly.store.ops.upkeep import Prune, RegisterWorker, Tick
from duly.store.postgres import (
    carried_runs,
    maintenance,
    steps,
)
from duly.store.postgres.connection import PostgresSession

Verb = Callable[[PostgresSession, Any], Any]

OPERATIONS: dict[type, Verb] = {
    RegisterWorker: maintenance.register,
    BeginStep: steps.begin,
    EndStep: steps.end,
    ForgetStep: steps.forget,
    WakeRuns: steps.wake,
    RecheckWaits: steps.recheck,
    RerouteRuns: carried_runs.reroute,
    HandOver: carried_runs.hand_over,
    PostponeHandOver: carried_runs.postpone_hand_over,
    Tick: maintenance.tick,
    Prune: maintenance.prune,
}

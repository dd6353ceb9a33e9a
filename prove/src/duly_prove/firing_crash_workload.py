"""The workload for workers that die while firing: `duly_prove.firing_crash_workload:app`.

Many ops pass the fault points of writes. The workers of a trial therefore share a plan with fault
points. The next worker that looks for schedules to fire takes a point and dies there.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from duly.app import Duly
from duly.store.ops.op import A, Op, OpWriter
from duly.store.ops.schedules import FireSchedules
from duly.store.protocol import Store
from duly_prove.self_kill import arm, take_next
from duly_prove.workload import app as workload
from duly_prove.workload import observations

PLAN_VARIABLE = "DULY_PROVE_FIRING_PLAN"


class FiringCrashDuly(Duly):
    """An application whose store may kill a worker that fires schedules."""

    @property
    def store(self) -> Store:
        """The open store."""
        return cast("Store", _FiringCrashStore(super().store, os.environ.get(PLAN_VARIABLE)))


class _FiringCrashStore(OpWriter):
    def __init__(self, store: Store, plan: str | None) -> None:
        self._store = store
        self._plan = None if plan is None else Path(plan)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        return getattr(self._store, name)

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        if self._plan is not None and any(isinstance(op, FireSchedules) for op in ops):
            point = take_next(self._plan)
            if point is not None:
                arm(point, observations)
        return self._store.apply(ops)


app = FiringCrashDuly()
app.registry, app.bus = workload.registry, workload.bus

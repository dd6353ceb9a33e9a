"""The workload for workers that die at fault points: `duly_prove.crash_workload:app`.

Each worker process takes the next point of a plan. The first dies at the first point, its successor
at the second, and so on. When the plan is used up, they survive.
"""

import os
from pathlib import Path

from duly_prove.self_kill import arm, take_next
from duly_prove.workload import app, observations

__all__ = ["PLAN_VARIABLE", "app"]

PLAN_VARIABLE = "DULY_PROVE_PLAN"


def _arm_from_plan() -> None:
    plan = os.environ.get(PLAN_VARIABLE)
    point = take_next(Path(plan)) if plan else None
    if point is not None:
        arm(point, observations)


_arm_from_plan()

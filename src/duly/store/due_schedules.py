"""Fires due schedules: read, plan, write. Every worker does this; there is no leader."""

from duly.clock import MICROSECONDS
from duly.core.schedule import ON_TIME
from duly.core.schedule_plans import plan_due
from duly.limits import FIRE_BATCH, FOREVER_SECONDS, LATE_BATCH
from duly.store.ops.schedules import Fired, FireSchedules
from duly.store.protocol import Store

_CLOCK_STEP = 15 * 60 * MICROSECONDS
"""If a clock was ahead by less than this, the schedules only wait until that time is reached."""
_FOREVER = FOREVER_SECONDS * MICROSECONDS


def fire_due(store: Store, limit: int = FIRE_BATCH) -> Fired:
    """Fire or skip the due instants of up to `limit` schedules, and of some late schedules.

    Late schedules have their own budget, so that the others still fire on time.
    """
    on_time = store.list_due_schedules(limit, at_least=0, less_than=ON_TIME)
    late_limit = min(limit, LATE_BATCH)
    late = store.list_due_schedules(late_limit, at_least=ON_TIME, less_than=_FOREVER)
    ahead = store.list_schedules_ahead(late_limit, by=_CLOCK_STEP)
    planned = plan_due(on_time) + plan_due(late)
    if not planned and not ahead:
        return Fired(0, 0)
    fired: Fired = store.do(FireSchedules(tuple(planned), tuple(ahead)))
    # Schedules that this process cannot read stay ahead. If it rewound none, the next call would
    # not rewind any either.
    is_ahead = len(ahead) == late_limit and fired.rewound > 0
    is_full = len(on_time) == limit or len(late) == late_limit or is_ahead
    is_left = len(planned) < len(on_time) + len(late) or any(each.is_behind for each in planned)
    return fired._replace(has_more=is_full or is_left)

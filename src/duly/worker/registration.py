"""How a worker makes itself known."""

import json
import os
import platform
from collections.abc import Mapping

from duly.core.amounts import bounded_microseconds
from duly.core.served_queues import ServedQueues
from duly.store.ops.upkeep import RegisterWorker
from duly.version import VERSION


def registration(
    worker_id: str,
    lease: float,
    queues: ServedQueues,
    lanes: Mapping[str, str],
    retentions: Mapping[str, float],
    *,
    version: str | None = None,
) -> RegisterWorker:
    """Return the op for a worker of this process; `lanes` are those of the tasks it sees to."""
    # Sorted, so that all workers of a program register the same list.
    lanes = dict(sorted(lanes.items()))
    kept = {task: bounded_microseconds(seconds) for task, seconds in retentions.items()}
    return RegisterWorker(
        worker_id,
        platform.node(),
        os.getpid(),
        lease,
        queues.stored(),
        json.dumps(list(lanes)),
        json.dumps(dict(lanes)),
        json.dumps({task: kept[task] for task in kept.keys() & lanes.keys()}),
        version,
        f"duly {VERSION}, Python {platform.python_version()}",
    )

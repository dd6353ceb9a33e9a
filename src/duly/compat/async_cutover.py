"""Moves waiting one-time tasks from the tables of a hand-built AsyncScheduler to duly."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from duly import Duly, Task
from duly.compat.cutover import (
    LegacyTable,
    LegacyTransaction,
    Row,
    RowNotMoved,
    call_of,
    move,
    parse_instant,
)
from duly.core.instants import moment
from duly.limits import CUT_OVER_LATE_SECONDS

Find = Callable[[str, str], Task[..., Any] | None]
"""Returns the task with a name or the path of a function, or None if it is not registered."""

_LATE = timedelta(seconds=CUT_OVER_LATE_SECONDS)
_ONCE = LegacyTable(
    "the async scheduler",
    "scheduler_tasks",
    "id",
    frozenset(
        {
            "id",
            "task_name",
            "task_type",
            "once_time",
            "task_func",
            "task_args",
            "task_kwargs",
            "is_active",
            "last_run_status",
        }
    ),
    "SELECT * FROM scheduler_tasks"
    " WHERE task_type = 'ONCE' AND is_active AND id > :after ORDER BY id LIMIT :most",
    first=0,
    label="task_name",
)
_TAKE = "UPDATE scheduler_tasks SET is_active = FALSE WHERE id = :id AND is_active RETURNING id"


def move_once_tasks(duly: Duly, find: Find, *, tag: str, reported: set[str]) -> bool:
    """Move the tasks whose function is registered. Return whether others are left."""
    now = moment(duly.store.now())

    def take(tables: LegacyTransaction, row: Row) -> bool:
        name, at = row["task_name"], parse_instant(row["once_time"])
        if row["last_run_status"] is not None:
            raise RowNotMoved(
                "it started and did not succeed: find out how far it ran, then add it again"
            )
        if now - at > _LATE:
            raise RowNotMoved(f"it was due at {at:%Y-%m-%d %H:%M} UTC and was missed; add it again")
        task = find(name, row["task_func"])
        if task is None:
            raise RowNotMoved(
                f"its function {row['task_func']} is not registered in this process yet"
            )
        bound = task.using(at=at, tags={tag: name})
        op = call_of(task, bound, row["task_args"], row["task_kwargs"])
        if not tables.rows(_TAKE, id=row["id"]):
            return False  # Another process has moved it.
        tables.accept(op)
        return True

    return bool(move(duly, _ONCE, take, reported=reported))

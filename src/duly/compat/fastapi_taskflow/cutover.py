"""Moves tasks that fastapi-taskflow left in this database to duly, when a manager starts."""

import json
from typing import Any

from duly import Duly
from duly.compat.cutover import (
    LegacyTable,
    LegacyTransaction,
    Row,
    RowNotMoved,
    call_of,
    move,
    parse_instant,
)
from duly.compat.fastapi_taskflow.definitions import TaskRegistrar
from duly.compat.fastapi_taskflow.enqueue import with_reserved_tags
from duly.compat.fastapi_taskflow.one_time import OneTimeTasks
from duly.compat.fastapi_taskflow.queues import QueueLimits
from duly.core.states import FINAL, State
from duly.store.ops.runs import Enqueue

TASK_ID_TAG = "taskflow_task_id"
"""The tag of moved tasks with the id that fastapi-taskflow had assigned."""

_SYSTEM = "fastapi-taskflow"
_ENDED_WITHOUT_SUCCESS = FINAL - {State.SUCCEEDED}
_PENDING = LegacyTable(
    _SYSTEM,
    "task_pending_requeue",
    "task_id",
    frozenset({"task_id", "func_name", "args_json", "kwargs_json"}),
    "SELECT * FROM task_pending_requeue WHERE task_id > :after ORDER BY task_id LIMIT :most",
)
_TAKE_PENDING = "DELETE FROM task_pending_requeue WHERE task_id = :task_id RETURNING task_id"
_SUCCEEDED = "SELECT 1 FROM task_snapshots WHERE task_id = :task_id AND status = 'success'"
_SCHEDULED = LegacyTable(
    _SYSTEM,
    "task_scheduled_once",
    "run_key",
    frozenset({"run_key", "func_name", "fire_at", "args_json", "kwargs_json"}),
    "SELECT * FROM task_scheduled_once WHERE run_key > :after ORDER BY run_key LIMIT :most",
)
_TAKE_SCHEDULED = "DELETE FROM task_scheduled_once WHERE run_key = :run_key RETURNING run_key"


def move_rows(
    duly: Duly, registrar: TaskRegistrar, queues: QueueLimits, once: OneTimeTasks
) -> None:
    """Move waiting tasks. Rows that cannot be moved stay, and the log names them."""
    rows = _RowImporter(duly, registrar, queues, once)
    move(duly, _PENDING, rows.take_pending)
    move(duly, _SCHEDULED, rows.take_scheduled)


class _RowImporter:
    """Creates runs from rows."""

    def __init__(
        self, duly: Duly, registrar: TaskRegistrar, queues: QueueLimits, once: OneTimeTasks
    ) -> None:
        self._duly = duly
        self._registrar = registrar
        self._queues = queues
        self._once = once
        self._has_history = bool(duly.store.columns_of("task_snapshots"))

    def take_pending(self, tables: LegacyTransaction, row: Row) -> bool:
        """Move a task that had not ended when its process stopped."""
        task_id = row["task_id"]
        op = self._call(row, tags={TASK_ID_TAG: task_id})
        if not tables.rows(_TAKE_PENDING, task_id=task_id):
            return False  # Another process has moved it.
        # fastapi-taskflow does the same: a task that succeeded was just not removed from the table.
        if not (self._has_history and tables.rows(_SUCCEEDED, task_id=task_id)):
            tables.accept(op)
        return True

    def take_scheduled(self, tables: LegacyTransaction, row: Row) -> bool:
        """Move a one-time task, which then waits for its time in duly."""
        run_key = row["run_key"]
        op = self._call(
            row,
            at=parse_instant(row["fire_at"]),
            key=row.get("idempotency_key"),
            priority=row.get("priority"),
            tags=json.loads(row.get("tags_json") or "null"),
        )
        op = with_reserved_tags(op, self._once.tags_of(run_key))
        if not tables.rows(_TAKE_SCHEDULED, run_key=run_key):
            return False
        # A task scheduled under this key since then takes precedence, as in fastapi-taskflow.
        if not self._once.is_waiting(run_key):
            answer = tables.accept(op)
            holder = None if answer.new else self._duly.store.get_run(answer.run_id)
            if holder is not None and holder.state in _ENDED_WITHOUT_SUCCESS:
                raise RowNotMoved(
                    f"run {holder.id} has its idempotency key and did not succeed: retry it"
                )
        return True

    def _call(self, row: Row, **options: Any) -> Enqueue:  # noqa: ANN401 - those of `using`
        if row.get("encrypted_payload"):
            raise RowNotMoved(
                "its arguments are pickled, and duly does not unpickle: let fastapi-taskflow run "
                "it, or add it again and delete the row"
            )
        task = self._registrar.find(row["func_name"])
        if task is None:
            raise RowNotMoved(f"no task, or more than one, is called {row['func_name']!r} here")
        queue = self._queues.resolve(row.get("queue") or task.definition.queue)
        bound = task.using(queue=queue, **options)
        return call_of(task, bound, row["args_json"], row["kwargs_json"])

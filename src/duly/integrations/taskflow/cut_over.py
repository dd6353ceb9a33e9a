"""Moves the tasks that fastapi-taskflow left in this database to duly, when a manager starts."""

import json
from typing import Any

from duly.app import Duly
from duly.core.states import FINAL, State
from duly.integrations.cut_over import Left, Row, Source, Tables, call_of, moment_in, move
from duly.integrations.taskflow.accepting import with_reserved
from duly.integrations.taskflow.definitions import Definer
from duly.integrations.taskflow.once import OneTime
from duly.integrations.taskflow.queues import QueueLimits
from duly.store.ops import Enqueue

TASK_ID_TAG = "taskflow_task_id"
"""On runs of moved tasks: the id that fastapi-taskflow had given."""

_SYSTEM = "fastapi-taskflow"
_CAME_TO_NOTHING = FINAL - {State.SUCCEEDED}
_PENDING = Source(
    _SYSTEM,
    "task_pending_requeue",
    "task_id",
    frozenset({"task_id", "func_name", "args_json", "kwargs_json"}),
    "SELECT * FROM task_pending_requeue WHERE task_id > :after ORDER BY task_id LIMIT :most",
)
_TAKE_PENDING = "DELETE FROM task_pending_requeue WHERE task_id = :task_id RETURNING task_id"
_SUCCEEDED = "SELECT 1 FROM task_snapshots WHERE task_id = :task_id AND status = 'success'"
_SCHEDULED = Source(
    _SYSTEM,
    "task_scheduled_once",
    "run_key",
    frozenset({"run_key", "func_name", "fire_at", "args_json", "kwargs_json"}),
    "SELECT * FROM task_scheduled_once WHERE run_key > :after ORDER BY run_key LIMIT :most",
)
_TAKE_SCHEDULED = "DELETE FROM task_scheduled_once WHERE run_key = :run_key RETURNING run_key"


def move_rows(duly: Duly, definer: Definer, queues: QueueLimits, once: OneTime) -> None:
    """Move what waits; rows that cannot be moved stay, and the log names them."""
    rows = _Rows(duly, definer, queues, once)
    move(duly, _PENDING, rows.take_pending)
    move(duly, _SCHEDULED, rows.take_scheduled)


class _Rows:
    """Makes runs of rows."""

    def __init__(self, duly: Duly, definer: Definer, queues: QueueLimits, once: OneTime) -> None:
        self._duly = duly
        self._definer = definer
        self._queues = queues
        self._once = once
        self._has_history = bool(duly.store.columns_of("task_snapshots"))

    def take_pending(self, tables: Tables, row: Row) -> bool:
        """Move a task that had not ended when its process stopped."""
        task_id = row["task_id"]
        op = self._call(row, tags={TASK_ID_TAG: task_id})
        if not tables.rows(_TAKE_PENDING, task_id=task_id):
            return False  # Another process has moved it.
        # As fastapi-taskflow does: what has succeeded was only not taken out of the table.
        if not (self._has_history and tables.rows(_SUCCEEDED, task_id=task_id)):
            tables.accept(op)
        return True

    def take_scheduled(self, tables: Tables, row: Row) -> bool:
        """Move a one-time task, to wait for its time here."""
        run_key = row["run_key"]
        op = self._call(
            row,
            at=moment_in(row["fire_at"]),
            key=row.get("idempotency_key"),
            priority=row.get("priority"),
            tags=json.loads(row.get("tags_json") or "null"),
        )
        op = with_reserved(op, self._once.tags_of(run_key))
        if not tables.rows(_TAKE_SCHEDULED, run_key=run_key):
            return False
        # What was scheduled under this key since then counts, as it would in fastapi-taskflow.
        if not self._once.is_waiting(run_key):
            answer = tables.accept(op)
            holder = None if answer.new else self._duly.store.get_run(answer.run_id)
            if holder is not None and holder.state in _CAME_TO_NOTHING:
                raise Left(f"run {holder.id} has its idempotency key and did not succeed: retry it")
        return True

    def _call(self, row: Row, **options: Any) -> Enqueue:  # noqa: ANN401 - those of `using`
        if row.get("encrypted_payload"):
            raise Left(
                "its arguments are pickled, and duly unpickles nothing: let fastapi-taskflow run "
                "it, or add it again and delete the row"
            )
        task = self._definer.find(row["func_name"])
        if task is None:
            raise Left(f"no task, or more than one, is called {row['func_name']!r} here")
        queue = self._queues.resolve(row.get("queue") or task.definition.queue)
        bound = task.using(queue=queue, **options)
        return call_of(task, bound, row["args_json"], row["kwargs_json"])

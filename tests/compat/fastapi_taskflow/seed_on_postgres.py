"""The example with its tasks on PostgreSQL: its own `snapshot_db` names a file of SQLite."""

import os
from typing import Any

from duly.compat.fastapi_taskflow import PostgresBackend, TaskManager
from duly.integrations import taskflow


def manager(*, snapshot_db: str, **options: Any) -> TaskManager:
    """Return the example's manager on another store, with all else as the example says it."""
    return TaskManager(snapshot_backend=PostgresBackend(os.environ["SEED_STORE"]), **options)


taskflow.TaskManager = manager  # type: ignore[assignment,misc]

from examples.taskflow_app import app  # noqa: E402 - it makes its manager when it is imported

__all__ = ["app"]

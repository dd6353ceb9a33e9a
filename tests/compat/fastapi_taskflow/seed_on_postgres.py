"""The example with its tasks on PostgreSQL. Its own `snapshot_db` names a file of SQLite."""

import os
from typing import Any

from duly.compat import fastapi_taskflow
from duly.compat.fastapi_taskflow import PostgresBackend, TaskManager


def manager(*, snapshot_db: str, **options: Any) -> TaskManager:
    """Return the example's manager on another store, with the example's other options."""
    return TaskManager(snapshot_backend=PostgresBackend(os.environ["SEED_STORE"]), **options)


fastapi_taskflow.TaskManager = manager  # type: ignore[assignment,misc]

from examples.taskflow_app import app  # noqa: E402 - it makes its manager when it is imported

__all__ = ["app"]

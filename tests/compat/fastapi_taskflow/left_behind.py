"""The tables of fastapi-taskflow 0.12.1, as its own code makes them, and rows in them."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Self
from uuid import uuid4

import sqlalchemy

TABLES = (
    """
    CREATE TABLE task_snapshots (
        task_id text PRIMARY KEY, func_name text NOT NULL, status text NOT NULL, created_at text,
        start_time text, end_time text, duration double precision, retries_used integer DEFAULT 0,
        error text, snapshotted_at text, args_json text, kwargs_json text, logs_json text,
        stacktrace text, encrypted_payload text, source text DEFAULT 'manual', priority integer,
        executor text, queue text DEFAULT 'default')
    """,
    """
    CREATE TABLE task_pending_requeue (
        task_id text PRIMARY KEY, func_name text NOT NULL, created_at text,
        retries_used integer DEFAULT 0, args_json text, kwargs_json text, encrypted_payload text,
        queue text DEFAULT 'default')
    """,
    """
    CREATE TABLE task_scheduled_once (
        run_key text PRIMARY KEY, func_name text NOT NULL, fire_at text NOT NULL, created_at text,
        args_json text, kwargs_json text, encrypted_payload text, queue text DEFAULT 'default',
        priority integer, idempotency_key text, tags_json text)
    """,
)


class LeftBehind:
    """A database that fastapi-taskflow has used."""

    def __init__(self, url: str) -> None:
        address = url.replace("postgresql://", "postgresql+psycopg://")
        self._engine = sqlalchemy.create_engine(address, poolclass=sqlalchemy.NullPool)
        for table in TABLES:
            self.execute(table)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._engine.dispose()

    def execute(self, statement: str, rows: Sequence[Mapping[str, object]] = ()) -> None:
        """Execute one statement, or one for each row."""
        with self._engine.begin() as connection:
            connection.execute(sqlalchemy.text(statement), list(rows) or None)

    def rows(self) -> list[str]:
        """Return the keys of what still waits in the tables."""
        both = """
            SELECT task_id FROM task_pending_requeue
            UNION ALL SELECT run_key FROM task_scheduled_once
        """
        with self._engine.connect() as connection:
            return list(connection.scalars(sqlalchemy.text(both)))

    def pending(
        self,
        function: str,
        args: list[object],
        kwargs: dict[str, object] | None = None,
        *,
        status: str | None = None,
        token: str | None = None,
        queue: str | None = "default",
    ) -> str:
        """Leave a task that had not ended at a shutdown, perhaps with a record in the history."""
        values = {
            "task_id": str(uuid4()),
            "func_name": function,
            "created_at": datetime.now(UTC).isoformat(),
            "args_json": json.dumps(args),
            "kwargs_json": json.dumps(kwargs or {}),
            "encrypted_payload": token,
            "queue": queue,
        }
        if queue is None:
            del values["queue"]
        self._insert("task_pending_requeue", values)
        if status is not None:
            names = ("task_id", "func_name", "created_at")
            record = {name: values[name] for name in names} | {"status": status}
            self._insert("task_snapshots", record)
        return values["task_id"]

    def scheduled(
        self,
        run_key: str,
        function: str,
        at: datetime,
        args: list[object],
        *,
        priority: int | None = None,
        key: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        """Leave a one-time task."""
        self._insert(
            "task_scheduled_once",
            {
                "run_key": run_key,
                "func_name": function,
                "fire_at": at.isoformat(),
                "created_at": datetime.now(UTC).isoformat(),
                "args_json": json.dumps(args),
                "kwargs_json": "{}",
                "priority": priority,
                "idempotency_key": key,
                "tags_json": json.dumps(tags) if tags else None,
            },
        )

    def _insert(self, table: str, values: dict[str, object]) -> None:
        names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
        self.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", [values])  # noqa: S608

"""Moves waiting tasks from another system's tables, in the store's database, to duly.

A row is removed from its table in the transaction that enqueues its run. Each row is therefore
moved once, even if processes start twice, start at the same time, or are killed in between.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from duly import Duly, Task
from duly.connections import enqueue_dialogue, execute_dialogue
from duly.errors import BadOption, PayloadError, QueueFull
from duly.limits import CUT_OVER_BATCH
from duly.observe.logs import log_cut_over
from duly.store.ops.runs import Accepted, Enqueue
from duly.store.protocol import Store
from duly.task import BoundTask

Row = Mapping[str, Any]
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
_NAME = re.compile(r"(?<!:):([a-z]\w*)")


class RowNotMoved(Exception):
    """A row cannot be moved and stays in its table."""


class LegacyTransaction:
    """The tables of the other system, in one transaction."""

    def __init__(self, store: Store, connection: Any) -> None:  # noqa: ANN401 - the driver's own
        self._store = store
        self._connection = connection
        self.accepted: list[Enqueue] = []
        self._is_sqlite = type(connection).__module__.startswith("duly.store.sqlite")

    def rows(self, sql: str, **parameters: object) -> list[Row]:
        """Execute a statement with `:name` parameters. Return its rows as mappings by column."""
        marked = sql if self._is_sqlite else _NAME.sub(r"%(\1)s", sql)
        cursor = self._connection.cursor()
        cursor.execute(marked, parameters)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()] if names else []

    def accept(self, op: Enqueue) -> Accepted:
        """Enqueue a run as part of the transaction, or return the run that has its key."""
        answer = execute_dialogue(self._connection, *enqueue_dialogue(self._store, op, wake=False))
        self.accepted.append(op)
        return answer

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Roll back the writes of a block if it raises."""
        self.rows("SAVEPOINT duly_cut_over")
        try:
            yield
        except BaseException:
            self.rows("ROLLBACK TO SAVEPOINT duly_cut_over")
            raise
        finally:
            self.rows("RELEASE SAVEPOINT duly_cut_over")


class LegacyTable(NamedTuple):
    """A table of another system."""

    system: str
    table: str
    key: str
    """The column that the rows are ordered by."""
    columns: frozenset[str]
    """A table without these columns belongs to something else."""
    select: str
    """Returns the rows after `:after`, at most `:most`."""
    first: object = ""
    label: str | None = None
    """The column that names rows in the report. If None, the key."""


def move(
    duly: Duly,
    source: LegacyTable,
    take: Callable[[LegacyTransaction, Row], bool],
    *,
    reported: set[str] | None = None,
) -> dict[str, str]:
    """Move the rows of a table, log the outcome, and return why some rows are left.

    `take` moves a row and returns whether it still existed, or raises RowNotMoved. Rows that are
    left are logged unless an earlier call has `reported` them.
    """
    left: dict[str, str] = {}
    if not source.columns <= duly.store.columns_of(source.table):
        return left
    moved, after, is_over = 0, source.first, False
    while not is_over:
        with _transaction(duly.store) as tables:
            page = tables.rows(source.select, after=after, most=CUT_OVER_BATCH)
            for row in page:
                after = row[source.key]
                try:
                    with tables.savepoint():
                        moved += take(tables, row)
                except (RowNotMoved, BadOption, QueueFull) as reason:
                    left[str(row[source.label or source.key])] = str(reason)
                except _UNREADABLE:
                    left[str(row[source.label or source.key])] = "its columns cannot be read"
            is_over = len(page) < CUT_OVER_BATCH
    known = set() if reported is None else reported
    log_cut_over(source.system, moved, {name: left[name] for name in left if name not in known})
    known.update(left)
    return left


@contextmanager
def _transaction(store: Store) -> Iterator[LegacyTransaction]:
    section = store.task_transaction()
    try:
        tables = LegacyTransaction(store, section.connection)
        yield tables
        section.commit()
    except BaseException:
        section.rollback()
        raise
    if tables.accepted:
        store.wake(*tables.accepted)


def call_of(
    task: Task[..., Any], bound: BoundTask[..., Any], args: str | None, kwargs: str | None
) -> Enqueue:
    """Return a call whose arguments are stored as JSON. Raise RowNotMoved if they do not fit."""
    try:
        listed, named = json.loads(args or "[]"), json.loads(kwargs or "{}")
        found = task.definition.codec.from_json(listed, named)
        return bound.call(*found[0], **found[1]).op
    except (PayloadError, TypeError, ValueError, AttributeError):
        # The original error may show the arguments, which may contain a secret.
        raise RowNotMoved("its arguments do not fit the parameters of the task") from None


def parse_instant(value: str | datetime) -> datetime:
    """Return a stored time. A time without a zone is UTC."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise RowNotMoved(f"its time {value!r:.40} cannot be read") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found

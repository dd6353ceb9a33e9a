"""A connection that a body uses during its transaction, and that is unusable after it.

It is a handle on one of the store's connections, which serves other runs later. Every call to the
server goes through `wait`, one call at a time. The end of the transaction takes the libpq
connection away from the handle, as soon as the call in progress has ended.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg import Cursor, ServerCursor
from psycopg._preparing import PrepareManager
from psycopg.pq import PipelineStatus, TransactionStatus

from duly.errors import BadOption, DulyError, TransactionEnded
from duly.store.postgres.transaction_scan import find_transaction_end
from duly.store.task_connection import ENDS_WITH_ITS_RUN, TaskConnection

ENDED_BY_ITS_BODY = (
    "the task ended its own transaction, which must end with its run: earlier writes were not "
    "undone, and nothing was committed together with the result of the run; use "
    "connection.transaction() for savepoints, and raise an exception to undo everything"
)


class PostgresTaskConnection(TaskConnection, psycopg.Connection[Any]):
    """A connection whose transaction ends with its run."""

    def __init__(self, lender: psycopg.Connection[Any]) -> None:
        self._raw: Any = None
        self._factories: dict[str, Any] = {}
        self._using = threading.RLock()
        """Held during every call."""
        self._cancelling = threading.Lock()
        raw = lender.pgconn
        self._handlers = raw.notice_handler, raw.notify_handler
        super().__init__(raw)
        # Both objects name their prepared statements in one backend, so they share the names.
        self._prepared = lender._prepared  # noqa: SLF001
        self._preparing = self.prepare_threshold, self.prepared_max

    # The driver keeps these in plain attributes, and all of its code reads them here.

    @property
    def pgconn(self) -> Any:  # noqa: ANN401 - the driver's own
        """The libpq connection, as long as the body may use it."""
        if self._raw is None:
            raise self._over or TransactionEnded(ENDED_BY_ITS_BODY)
        return self._raw

    @pgconn.setter
    def pgconn(self, raw: Any) -> None:  # noqa: ANN401
        self._raw = raw

    @property
    def cursor_factory(self) -> type[Cursor[Any]]:
        """The class of cursors. Its setter makes the class refuse to end the transaction."""
        return cast("type[Cursor[Any]]", self._factories["client"])

    @cursor_factory.setter
    def cursor_factory(self, kind: type[Cursor[Any]]) -> None:
        self._factories["client"] = _task_cursor_class(kind)

    @property
    def server_cursor_factory(self) -> type[ServerCursor[Any]]:
        """The class of server-side cursors."""
        return cast("type[ServerCursor[Any]]", self._factories["server"])

    @server_cursor_factory.setter
    def server_cursor_factory(self, kind: type[ServerCursor[Any]]) -> None:
        self._factories["server"] = _task_cursor_class(kind)

    @property
    def closed(self) -> bool:
        """True if it can no longer be used."""
        return self._over is not None or self._raw is None or super().closed

    @property
    def broken(self) -> bool:
        """True if the connection to the server was lost during the body's transaction."""
        return self._over is None and self._raw is not None and super().broken

    def check(self) -> None:
        """Raise the reason if it can no longer be used."""
        super().check()
        self._check_open()

    def wait(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as the driver calls it
        """Communicate with the server. Only one call at a time does this."""
        with self._using:
            self.check()
            answer = super().wait(*args, **options)
            self._check_open()
            return answer

    def _check_open(self) -> None:
        """Raise if the body has ended its transaction. The refusals do not catch every way."""
        if self._raw is not None and self._raw.transaction_status == TransactionStatus.IDLE:
            self.invalidate(TransactionEnded(ENDED_BY_ITS_BODY))
            super().check()

    def cancel(self) -> None:
        """Cancel the call that is in progress, if it is still this body's."""
        with self._cancelling:
            super().cancel()

    def cancel_safe(self, *, timeout: float = 30.0) -> None:
        """Do the same with a timeout."""
        with self._cancelling:
            super().cancel_safe(timeout=timeout)

    __enter__ = set_autocommit = TaskConnection._refuse  # noqa: SLF001 - of its base class
    tpc_begin = tpc_prepare = tpc_commit = tpc_rollback = TaskConnection._refuse  # noqa: SLF001

    def __del__(self, *_warn: object) -> None:
        """Emit no warning: the store closes the underlying connection."""

    def __repr__(self) -> str:
        return super().__repr__() if self._raw is not None else "<closed task connection>"

    # -- for the store --

    @contextmanager
    def engine_access(self) -> Iterator[None]:
        """Let the engine use the transaction during a block."""
        with self._using:
            self.check()
            if self._raw.pipeline_status != PipelineStatus.OFF:
                raise BadOption("exit the pipeline of this run's connection before the step ends")
            yield

    def retire(self, why: DulyError) -> None:
        """Take the connection away from the body, after the call that is in progress has ended."""
        self.invalidate(why)
        with self._using, self._cancelling:
            raw, self._raw = self._raw, None
            if raw is not None:
                raw.notice_handler, raw.notify_handler = self._handlers
                self.prepare_threshold, self.prepared_max = self._preparing
                self._prepared = PrepareManager()


class _TaskQuery:
    """A statement that is checked before it is sent."""

    __slots__ = ()
    query: bytes

    def convert(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as the driver calls it
        super().convert(*args, **options)  # type: ignore[misc] # of the class that it is mixed into
        ending = find_transaction_end(self.query)
        if ending is not None:
            raise BadOption(f"{ending}: {ENDS_WITH_ITS_RUN}")


class _TaskCursor:
    """A cursor that becomes unusable together with its connection."""

    __slots__ = ()
    connection: PostgresTaskConnection

    def fetchone(self) -> Any:  # noqa: ANN401 - a row
        self.connection.check()
        return super().fetchone()  # type: ignore[misc] # of the class that it is mixed into

    def fetchmany(self, size: int = 0) -> Any:  # noqa: ANN401 - rows
        self.connection.check()
        return super().fetchmany(size)  # type: ignore[misc]

    def fetchall(self) -> Any:  # noqa: ANN401 - rows
        self.connection.check()
        return super().fetchall()  # type: ignore[misc]

    @property
    def closed(self) -> bool:
        is_closed: bool = super().closed  # type: ignore[misc]
        return is_closed or self.connection.closed


class _TaskCursorIterator(_TaskCursor):
    """A cursor that is its own iterator, as all cursors are since psycopg 3.3."""

    __slots__ = ()

    def __next__(self) -> Any:  # noqa: ANN401 - a row
        self.connection.check()
        return super().__next__()  # type: ignore[misc]


def _task_cursor_class(kind: Any) -> Any:  # noqa: ANN401 - a class of cursors
    """Return the subclass of a cursor class that belongs to a body's connection."""
    if issubclass(kind, _TaskCursor):
        return kind
    if kind not in _made:
        query = type("LentQuery", (_TaskQuery, kind._query_cls), {"__slots__": ()})  # noqa: SLF001
        lent = _TaskCursorIterator if hasattr(kind, "__next__") else _TaskCursor
        what = {"__slots__": (), "_query_cls": query}
        _made[kind] = type(f"Lent{kind.__name__}", (lent, kind), what)
    return _made[kind]


_made: WeakKeyDictionary[type, type] = WeakKeyDictionary()
"""The subclasses, by the class that they are made from."""

"""Messages for connections that task bodies have during their transaction."""

from contextvars import ContextVar

BODY: ContextVar[object] = ContextVar("duly_body", default=None)
"""Identifies a task body, in its context and in copies of that context."""

OWN_TRANSACTION = (
    "this write is not part of the run's open transaction and would wait for it: write from the "
    "task's own thread and application with using(connection=duly.current().connection), or after "
    "the transaction has ended"
)

ENDS_WITH_ITS_RUN = (
    "this connection's transaction ends with its run, so it cannot be begun, committed, rolled "
    "back or closed: raise an exception to undo the writes, or use a savepoint to undo some of them"
)
IS_OVER = (
    "the transaction of this connection has ended; get the connection from duly.current() in every "
    "task, and join threads that use it before the task returns"
)

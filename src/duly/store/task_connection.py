"""What is said of connections that bodies have for the length of their transaction."""

from contextvars import ContextVar

BODY: ContextVar[object] = ContextVar("duly_body", default=None)
"""What tells a body from all others, in its context and in those that are copied from it."""

OWN_TRANSACTION = (
    "the transaction of this run is open and in the way of this write, which is not a part of it: "
    "do it in the body's own thread and application, with using(connection=duly.current()."
    "connection), or when the transaction has ended"
)

ENDS_WITH_ITS_RUN = (
    "this connection's transaction ends with its run: neither begin, commit nor close it, nor roll "
    "it back; raise an exception to undo what it wrote, and undo a part of it by a savepoint"
)
IS_OVER = (
    "the transaction that this connection was lent for has ended; ask duly.current() for it in "
    "every body anew, and end threads that use it before the body ends"
)

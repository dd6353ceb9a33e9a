"""The connections that tasks use during their transactions."""

from contextvars import ContextVar
from typing import NoReturn

from duly.errors import BadOption, DulyError

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


class TaskConnection:
    """The common part of all databases' connections: a task cannot end its transaction.

    Subclasses also inherit from the connection of a driver.
    """

    _over: DulyError | None = None

    def check(self) -> None:
        """Raise the reason if the task can no longer use the connection."""
        if self._over is not None:
            raise self._over

    def invalidate(self, why: DulyError) -> None:
        """Make every further call of the task fail. A call that is in progress continues."""
        if self._over is None:
            self._over = why

    def _refuse(self, *_args: object, **_options: object) -> NoReturn:
        self.check()
        raise BadOption(ENDS_WITH_ITS_RUN)

    commit = rollback = close = _refuse

"""Calls a function after a caller's transaction has committed.

Django and SQLAlchemy's Session have a hook for this. Other connections have none.
"""

import contextlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from duly.errors import DulyError

Hook = Callable[[], None]


class CommitHooks(NamedTuple):
    """How one library calls a function after a commit."""

    are_available: Callable[[Any], bool]
    """Returns whether the current transaction on this connection has such a hook."""
    add: Callable[[Any, Hook], None]
    """Called after the statements.

    Without a transaction they are committed, so it calls back at once.
    """


def suppress_errors(hook: Hook) -> Hook:
    """Return a hook that raises nothing.

    The commit has succeeded, and polling finds the run anyway.
    """

    def call() -> None:
        with contextlib.suppress(DulyError, OSError, RuntimeError):
            hook()

    return call


# -- Django --


def _django_has_hooks(connection: Any) -> bool:  # noqa: ANN401 - Django's own
    # If both are false, the application calls commit() itself, and Django refuses hooks.
    return bool(connection.in_atomic_block or connection.get_autocommit())


def _add_to_django(connection: Any, hook: Hook) -> None:  # noqa: ANN401
    connection.on_commit(hook, robust=True)


DJANGO_HOOKS = CommitHooks(_django_has_hooks, _add_to_django)


# -- SQLAlchemy --


_hooks: WeakKeyDictionary[Any, list[Hook]] = WeakKeyDictionary()
"""The hooks of each open transaction or savepoint of a Session. A rollback discards them."""


def _session_has_hooks(session: Any) -> bool:  # noqa: ANN401 - SQLAlchemy's own
    # A session on a Connection may be part of a transaction that other code commits later.
    return not isinstance(session.get_bind(), sys.modules["sqlalchemy.engine"].Connection)


def _add_to_session(session: Any, hook: Hook) -> None:  # noqa: ANN401
    if type(session).__name__ == "scoped_session":
        session = session()
    event = sys.modules["sqlalchemy"].event
    if not event.contains(session, "after_commit", _after_commit):
        event.listen(session, "after_commit", _after_commit)
    within = session.get_nested_transaction() or session.get_transaction()
    _hooks.setdefault(within, []).append(hook)


def _after_commit(session: Any) -> None:  # noqa: ANN401
    """Call the hooks of a transaction that has committed. Move those of a savepoint outwards."""
    savepoint = session.get_nested_transaction()
    found = _hooks.pop(savepoint or session.get_transaction(), [])
    if savepoint is None:
        for hook in found:
            hook()
    elif found:
        around = savepoint.parent
        while not around.nested and around.parent is not None:
            around = around.parent  # This is a flush, which belongs to the transaction around it.
        _hooks.setdefault(around, []).extend(found)


SESSION_HOOKS = CommitHooks(_session_has_hooks, _add_to_session)


def _sync_session(session: Any) -> Any:  # noqa: ANN401
    return session.sync_session


ASYNC_SESSION_HOOKS = CommitHooks(
    lambda session: _session_has_hooks(_sync_session(session)),
    lambda session, hook: _add_to_session(_sync_session(session), hook),
)

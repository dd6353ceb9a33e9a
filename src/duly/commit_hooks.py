"""Calling a function once a caller's transaction has committed.

Django and the Session of SQLAlchemy have a hook for that. Other connections have none.
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
    """Whether the transaction on this connection, as it is now, has such a hook."""
    add: Callable[[Any, Hook], None]
    """Called behind the statements: without a transaction they are committed, and it calls back."""


def suppress_errors(hook: Hook) -> Hook:
    """Return a hook that raises nothing: the commit has succeeded, and polling is the backstop."""

    def call() -> None:
        with contextlib.suppress(DulyError, OSError, RuntimeError):
            hook()

    return call


# -- Django --


def _django_has_hooks(connection: Any) -> bool:  # noqa: ANN401 - Django's own
    # Without both, the application calls commit() itself, and Django refuses hooks.
    return bool(connection.in_atomic_block or connection.get_autocommit())


def _add_to_django(connection: Any, hook: Hook) -> None:  # noqa: ANN401
    connection.on_commit(hook, robust=True)


DJANGO_HOOKS = CommitHooks(_django_has_hooks, _add_to_django)


# -- SQLAlchemy --


_hooks: WeakKeyDictionary[Any, list[Hook]] = WeakKeyDictionary()
"""The hooks of each open transaction or savepoint of a Session; a rollback forgets them."""


def _session_has_hooks(session: Any) -> bool:  # noqa: ANN401 - SQLAlchemy's own
    # On a Connection the session may be a part of a transaction that others commit, later.
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
    """Call the hooks of a transaction that has committed; hand on those of a savepoint."""
    savepoint = session.get_nested_transaction()
    found = _hooks.pop(savepoint or session.get_transaction(), [])
    if savepoint is None:
        for hook in found:
            hook()
    elif found:
        around = savepoint.parent
        while not around.nested and around.parent is not None:
            around = around.parent  # A flush, which is a part of what is around it.
        _hooks.setdefault(around, []).extend(found)


SESSION_HOOKS = CommitHooks(_session_has_hooks, _add_to_session)


def _sync_session(session: Any) -> Any:  # noqa: ANN401
    return session.sync_session


ASYNC_SESSION_HOOKS = CommitHooks(
    lambda session: _session_has_hooks(_sync_session(session)),
    lambda session, hook: _add_to_session(_sync_session(session), hook),
)

"""Where the dead letters are that a command is about: runs, and letters of other engines."""

from collections.abc import Iterable
from typing import NamedTuple

from duly.app import Duly
from duly.cli.hints import similar
from duly.cli.loading import app_of, open_guard
from duly.cli.session import Session
from duly.cli.values import Clock
from duly.clock import SystemClock
from duly.core.key import check_run_id
from duly.errors import LetterNotFound, RunNotFound
from duly.guard.letters import Letters
from duly.limits import PAGE
from duly.store.guard_ops import Letter
from duly.store.protocol import Ledger, LetterFilter


class Desk(NamedTuple):
    """Where the dead letters are that a command is about."""

    app: Duly | None
    """Whose runs; None for a Celery application, which has none."""
    ledger: Ledger
    letters: Letters
    engine: str | None = None
    """Whose letters can be replayed here."""

    @property
    def clock(self) -> Clock:
        """The store's, or else this host's."""
        return SystemClock() if self.app is None else self.app.store

    def find(self, letter_id: str) -> Letter | None:
        """Return a letter, open or not."""
        try:
            return self.letters.get(check_run_id(letter_id))
        except (LetterNotFound, RunNotFound):
            return None

    def nothing(self, task: str | None) -> str:
        """Say that nothing matches, and which task may have been meant."""
        groups = [] if self.app is None else self.app.dead.groups(limit=PAGE)
        letters = self.ledger.list_letters(LetterFilter(limit=PAGE))
        tasks = {group.task for group in groups} | {letter.task for letter in letters}
        return no_match(task, tasks)


def desk_of(session: Session) -> Desk:
    """Return where the session's dead letters are."""
    guard = open_guard(session)
    if guard is not None:
        return Desk(None, guard.ledger, guard.letters, "celery")
    app = app_of(session)
    return Desk(app, app.store, Letters(lambda: app.store))


def no_match(task: str | None, known: Iterable[str]) -> str:
    """Say that nothing matches, and which of the known tasks may have been meant."""
    meant = [] if task is None else similar(task, known)
    hint = f" --task takes a full name: there are dead letters of {', '.join(meant)}."
    return "No dead letter matches." + (hint if meant else "")

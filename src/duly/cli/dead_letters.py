"""Finds the dead letters of a command: runs, and messages of other engines."""

from collections.abc import Iterable
from typing import NamedTuple

from duly.app import Duly
from duly.cli.applications import app_of, open_guard, redis_guard
from duly.cli.failures import TaskNotFound
from duly.cli.option_types import TimeSource
from duly.cli.session import CommandSession
from duly.clock import SystemClock
from duly.core.call_view import CallView
from duly.core.key import check_run_id
from duly.core.suggestions import similar
from duly.errors import LetterNotFound, RunNotFound
from duly.guard.dead_letters import GuardDeadLetters
from duly.limits import PAGE
from duly.store.ops.guard import DeadLetterRecord
from duly.store.reads import DeadLetterFilter


class DeadLetterSource(NamedTuple):
    """The source of the dead letters that a command handles."""

    app: Duly | None
    """The application with the runs. None for a Celery application or a Redis, which have none."""
    engine_letters: GuardDeadLetters
    shown_url: str
    """The address for display."""

    @property
    def clock(self) -> TimeSource:
        """The clock of the store, or else of this host."""
        return SystemClock() if self.app is None else self.app.store

    def find(self, letter_id: str) -> DeadLetterRecord | None:
        """Return the dead letter of another engine, in any state."""
        try:
            return self.engine_letters.get(check_run_id(letter_id))
        except (LetterNotFound, RunNotFound):
            return None

    def check_task(self, task: str) -> None:
        """Raise TaskNotFound for a task that is not defined and never had a run or dead letter."""
        app = self.app
        if app is not None and (app.registry.find(task) or app.runs.list(task=task, limit=1)):
            return
        if not self.engine_letters.list(state=None, task=task, limit=1):
            raise TaskNotFound(task, self.no_match(task))

    def no_match(self, task: str | None) -> str:
        """Return the message that nothing matches, with suggestions for the task."""
        groups = [] if self.app is None else self.app.dead.groups(limit=PAGE)
        letters = self.engine_letters.groups(DeadLetterFilter(limit=PAGE))
        return self._no_match(task, {group.task for group in (*groups, *letters)})

    def _no_match(self, task: str | None, known: Iterable[str]) -> str:
        meant = [] if task is None else similar(task, known)
        hint = f" --task takes a full name: there are dead letters of {', '.join(meant)}."
        return f"No dead letter matches in {self.shown_url}." + (hint if meant else "")


def dead_letters_of(session: CommandSession) -> DeadLetterSource:
    """Return the source of the session's dead letters."""
    guard = open_guard(session)
    if guard is not None:
        return DeadLetterSource(None, guard.letters, guard.ledger.shown_url)
    guard = redis_guard(session)
    if guard is not None:
        ledger = guard.ledger
        return DeadLetterSource(None, GuardDeadLetters(lambda: ledger), ledger.shown_url)
    app = app_of(session)
    return DeadLetterSource(app, GuardDeadLetters(lambda: app.store), app.store.shown_url)


def letter_calls(*, show_args: bool) -> CallView:
    """Return the view of the calls in dead letters. The tasks of other engines are unknown here."""
    return CallView(shows_unregistered=show_args)

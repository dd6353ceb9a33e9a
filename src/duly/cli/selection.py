"""Selects the dead letters for an action: by id, by filter, or all."""

import click

from duly.api.runs import Filter
from duly.cli.dead_letters import dead_letters_of
from duly.cli.engine_dead_letters import EngineDeadLetterSelection
from duly.cli.filters import Filters
from duly.cli.session import CommandSession
from duly.core.states import DEAD
from duly.errors import LetterNotFound, RunNotFound
from duly.store.ops.guard import DeadLetterRecord
from duly.store.reads import DeadLetterFilter


class DeadLetterSelection:
    """The selected dead letters: runs of `app`, by `run_ids` or `which`, and those of engines."""

    def __init__(
        self,
        session: CommandSession,
        ids: tuple[str, ...],
        filters: Filters,
        *,
        everything: bool,
        replay: bool,
    ) -> None:
        if ids and (everything or not filters.is_empty):
            message = "name dead letters either by id or by filter"
            raise click.UsageError(message)
        if everything and not filters.is_empty:
            message = "--all cannot be combined with a filter"
            raise click.UsageError(message)
        if not ids and not everything and filters.is_empty:
            message = "name dead letters by id or by a filter, or give --all"
            raise click.UsageError(message)
        filters.check()
        source = dead_letters_of(session)
        if filters.task is not None:
            source.check_task(filters.task)
        self._source = source
        self._filters = filters
        self._is_retry = replay
        self._ids = list(dict.fromkeys(ids))
        # With --engine, and for a Celery application, no runs are selected.
        self.app = source.app if filters.engine is None else None
        self.run_ids: list[str] | None = None
        self.which: Filter | None = None
        named: list[DeadLetterRecord] = []
        which_letters: DeadLetterFilter | None = None
        if ids:
            self.run_ids, named = self._split_ids()
        else:
            which_letters = filters.engine_letters(source.clock)
            self.which = filters.resolve(source.clock)
        self.engine_letters = EngineDeadLetterSelection(source.engine_letters, named, which_letters)
        if replay:
            self.engine_letters.check_retry()

    def count(self) -> int:
        """Return how many dead letters are selected now."""
        letters = self.engine_letters.count(replay=self._is_retry)
        if self.app is None:
            return letters
        if self.which is not None:
            return letters + self.app.dead.count(self.which)
        states = self.app.store.get_states(self.run_ids) if self.run_ids else {}
        return letters + sum(state in DEAD for state in states.values())

    def print_skipped(self) -> None:
        """Print which engine dead letters cannot be part of the action."""
        if self._is_retry:
            self.engine_letters.print_skipped()

    def no_match(self) -> str:
        """Return the message that nothing matches, with suggestions for the task."""
        return self._source.no_match(self._filters.task)

    def _split_ids(self) -> tuple[list[str], list[DeadLetterRecord]]:
        """Return the ids of runs, and the engine dead letters with the other ids.

        Raise an error for an unknown id.
        """
        app = self.app
        runs = {} if app is None else app.store.get_states(self._ids)
        letters = []
        for each in self._ids:
            if each in runs:
                continue
            letter = self._source.find(each)
            if letter is None:
                raise LetterNotFound(each) if app is None else RunNotFound(each)
            letters.append(letter)
        return [each for each in self._ids if each in runs], letters

"""Dead letters of other engines: shown, sent again, discarded."""

import threading
from collections.abc import Callable, Iterator, Sequence

from duly.cli.desk import Desk
from duly.cli.output import (
    Column,
    print_block,
    print_fields,
    print_heading,
    print_note,
    print_table,
)
from duly.cli.times import relative, shown
from duly.core.display import display_call
from duly.errors import BadOption, DulyError, PayloadError, TaskNotRegistered
from duly.guard.letters import Ended
from duly.limits import PAGE
from duly.store.guard_ops import Letter
from duly.store.protocol import LetterFilter

HIDDEN = "(arguments hidden: give --show-args)"

_COLUMNS = (
    Column("ID", whole=True),
    Column("ENGINE", whole=True),
    Column("TASK"),
    Column("CAUSE", from_width=80, whole=True),
    Column("ERROR"),
    Column("ATTEMPTS", from_width=100, whole=True, right=True),
    Column("AGE", from_width=80, whole=True),
)


class EngineNeeded(BadOption):
    """A letter was to be sent again where its engine's application is not at hand."""

    def __init__(self, engine: str, which: str, selection: str) -> None:
        super().__init__(
            f"{which} can be sent again only by an application of {engine}: "
            f"`duly --app proj.{engine}:app dead retry {selection}`"
        )


class NotSent(DulyError):
    """The engine did not take a letter's message."""

    def __init__(self, letter: Letter, error: Exception) -> None:
        super().__init__(
            f"{letter.engine} did not take letter {letter.id}: {type(error).__name__}: {error}; it "
            f"stays open, and so do those that were to follow"
        )


class ChosenLetters:
    """The letters that an act is about: by id, or the open ones that a filter selects."""

    def __init__(self, desk: Desk, named: Sequence[Letter], which: LetterFilter | None) -> None:
        self._desk = desk
        self._named = named
        self._which = which

    def check_replay(self) -> None:
        """Refuse, before anything is done, what was asked for by name and cannot be sent again."""
        engine = None if self._which is None else self._which.engine
        if engine not in {None, self._desk.engine} and self.count():
            raise EngineNeeded(str(engine), "letters", f"--engine {engine}")
        for letter in self._named:
            if letter.engine != self._desk.engine:
                raise EngineNeeded(letter.engine, f"letter {letter.id}", letter.id)

    def count(self, *, replay: bool = False) -> int:
        """Return how many an act would be about now."""
        return sum(
            letter.state == "open" and (self._is_ours(letter) or not replay) for letter in self
        )

    def replay(self, *, rate: float | None, progress: Callable[[Ended], None]) -> Ended:
        """Send them again, at most `rate` per second; those of other engines are skipped."""
        return self._each(self._send, rate, progress)

    def discard(self, *, progress: Callable[[Ended], None]) -> Ended:
        """Say that nothing needs to be done about them."""
        return self._each(lambda letter: self._desk.letters.discard(letter.id), None, progress)

    def note_left(self) -> None:
        """Say which ones are left since only their own application could send them again."""
        left: dict[str, int] = {}
        for letter in self:
            if not self._is_ours(letter):
                left[letter.engine] = left.get(letter.engine, 0) + 1
        for engine, count in left.items():
            which = f"{count:,} dead letter{'s' * (count > 1)}"
            print_note(f"Left: {EngineNeeded(engine, which, f'--engine {engine}')}.")

    def __iter__(self) -> Iterator[Letter]:
        yield from self._named
        if self._which is not None:
            # Newest first, each once, although those that were sent may die again meanwhile.
            page = self._which._replace(state="open", limit=PAGE)
            while found := self._desk.ledger.list_letters(page):
                yield from found
                page = page._replace(before=found[-1].id)

    def _is_ours(self, letter: Letter) -> bool:
        return letter.engine == self._desk.engine

    def _send(self, letter: Letter) -> Ended:
        if not self._is_ours(letter):
            return Ended(0, 1)
        try:
            return self._desk.letters.replay(letter.id)
        except (TaskNotRegistered, PayloadError) as error:
            # What cannot be sent at all must not keep the others from being sent.
            if self._named:
                raise
            print_note(f"Left: letter {letter.id}: {error}")
            return Ended(0, 1)
        except DulyError:
            raise
        except Exception as error:
            # Whatever the engine's client raises.
            raise NotSent(letter, error) from error

    def _each(
        self,
        act: Callable[[Letter], Ended],
        rate: float | None,
        progress: Callable[[Ended], None],
    ) -> Ended:
        total = Ended(0, 0)
        for letter in self:
            if rate is not None and total.done:
                threading.Event().wait(1 / rate)
            ended = act(letter)
            total = Ended(total.done + ended.done, total.skipped + ended.skipped)
            progress(total)
        return total


def print_letters(letters: Sequence[Letter], now: int) -> None:
    """Write letters as a table."""
    rows = [
        (
            letter.id,
            letter.engine,
            letter.task,
            letter.cause,
            letter.error.partition("\n")[0],
            str(letter.attempts),
            relative(letter.created_at, now),
        )
        for letter in letters
    ]
    print_table(_COLUMNS, rows)


def print_letter(letter: Letter, now: int, *, show_args: bool) -> None:
    """Write all of a letter."""
    ended = shown(letter.ended_at, now)
    call = display_call(letter.task, letter.arguments) if show_args else HIDDEN
    print_fields(
        [
            ("letter", letter.id),
            ("engine", letter.engine),
            ("task", letter.task),
            ("state", letter.state),
            ("cause", letter.cause),
            ("queue", letter.queue or ""),
            ("key", letter.key or ""),
            ("call", call),
            ("attempts", str(letter.attempts)),
            ("made", shown(letter.created_at, now)),
            (letter.state, f"{ended} by {letter.actor}" if ended else ""),
        ]
    )
    print_heading("error")
    print_block(letter.traceback or letter.error, indent="  ")

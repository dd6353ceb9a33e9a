"""Dead letters of other engines: show them, send them again, discard them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from duly.cli.dead_letters import letter_calls
from duly.cli.output import print_block, print_note
from duly.cli.tables import Column, print_fields, print_heading, print_table
from duly.core.display import display, display_call
from duly.core.time_text import relative, shown_instant
from duly.errors import BadOption
from duly.guard.dead_letters import DeadLetterResult, GuardDeadLetters, Progress
from duly.store.ops.guard import DeadLetterRecord
from duly.store.reads import DeadLetterFilter

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
_ARGUMENTS = Column("ARGUMENTS", from_width=100)


class EngineNeeded(BadOption):
    """A dead letter can be sent again only by its engine's application, which was not given."""

    def __init__(self, engine: str, which: str, selection: str) -> None:
        super().__init__(
            f"{which} can be retried only by its {engine} application: `duly --app "
            f"proj.{engine}:app dead retry {selection}`"
        )


class EngineDeadLetterSelection:
    """The selected engine dead letters: given by id, or the open ones that match a filter."""

    def __init__(
        self,
        letters: GuardDeadLetters,
        named: Sequence[DeadLetterRecord],
        which: DeadLetterFilter | None,
    ) -> None:
        self._dead_letters = letters
        self._named = named
        self._which = which

    def check_retry(self) -> None:
        """Raise EngineNeeded, before any change, if a given dead letter cannot be sent again."""
        engine = None if self._which is None else self._which.engine
        if engine is not None and not self._dead_letters.sends_for(engine) and self.count():
            raise EngineNeeded(engine, "these dead letters", f"--engine {engine}")
        for letter in self._named:
            if not self._dead_letters.can_send(letter):
                raise EngineNeeded(letter.engine, f"dead letter {letter.id}", letter.id)

    def count(self, *, replay: bool = False) -> int:
        """Return how many dead letters the action would affect now."""
        return sum(
            letter.state == "open" and (self._dead_letters.can_send(letter) or not replay)
            for letter in self
        )

    def retry(self, *, rate: float | None, reason: str, progress: Progress) -> DeadLetterResult:
        """Send the dead letters again, at most `rate` per second.

        Leave those of other applications.
        """
        return self._act(partial(self._dead_letters.replay, rate=rate), reason, progress)

    def discard(self, *, reason: str, progress: Progress) -> DeadLetterResult:
        """Discard the dead letters: they need no further action."""
        return self._act(self._dead_letters.discard, reason, progress)

    def _act(
        self, act: Callable[..., DeadLetterResult], reason: str, progress: Progress
    ) -> DeadLetterResult:
        if self._named:
            return act([letter.id for letter in self._named], reason=reason, progress=progress)
        if self._which is None:
            return DeadLetterResult(0, 0)
        return act(which=self._which, reason=reason, progress=progress)

    def print_skipped(self) -> None:
        """Print how many dead letters are left because only another application could send them."""
        left: dict[str, int] = {}
        for letter in self:
            if not self._dead_letters.can_send(letter):
                left[letter.engine] = left.get(letter.engine, 0) + 1
        for engine, count in left.items():
            which = f"{count:,} dead letter{'s' * (count > 1)}"
            print_note(f"Skipped: {EngineNeeded(engine, which, f'--engine {engine}')}.")

    def __iter__(self) -> Iterator[DeadLetterRecord]:
        yield from self._named
        if self._which is not None:
            yield from self._dead_letters.select(self._which)


def print_unsent(ended: DeadLetterResult) -> None:
    """Print the dead letters that could not be sent, with the reasons."""
    for each in ended.unsent:
        if not each.elsewhere:
            print_note(f"Not retried: dead letter {each.letter_id}: {each.problem}")


def print_dead_letters(letters: Sequence[DeadLetterRecord], now: int, *, show_args: bool) -> None:
    """Print dead letters as a table."""
    calls = letter_calls(show_args=show_args)
    rows = [
        (
            letter.id,
            letter.engine,
            letter.task,
            letter.cause,
            letter.error.partition("\n")[0],
            str(letter.attempts),
            relative(letter.created_at, now),
            display(calls.arguments(letter) or ""),
        )
        for letter in letters
    ]
    if show_args:
        print_table((*_COLUMNS, _ARGUMENTS), rows)
    else:
        print_table(_COLUMNS, [row[:-1] for row in rows])


def print_dead_letter(letter: DeadLetterRecord, now: int, *, show_args: bool) -> None:
    """Print all details of a dead letter."""
    ended = shown_instant(letter.ended_at, now)
    arguments = letter_calls(show_args=show_args).arguments(letter)
    call = HIDDEN if arguments is None else display_call(letter.task, arguments)
    print_fields(
        [
            ("dead letter", letter.id),
            ("engine", letter.engine),
            ("application", letter.application),
            ("namespace", letter.namespace),
            ("task", letter.task),
            ("state", letter.state),
            ("cause", letter.cause),
            ("queue", letter.queue or ""),
            ("key", letter.key or ""),
            ("call", call),
            ("attempts", str(letter.attempts)),
            ("fingerprint", letter.fingerprint),
            ("made", shown_instant(letter.created_at, now)),
            (letter.state, f"{ended} by {letter.actor}" if ended else ""),
            ("reason", letter.reason or ""),
        ]
    )
    print_heading("error")
    print_block(letter.traceback or letter.error, indent="  ")

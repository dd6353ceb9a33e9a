"""Dead letters: messages of other engines that nobody could carry out, to replay or discard."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from duly.actor import acting
from duly.clock import MICROSECONDS, new_id
from duly.errors import BadOption, LetterNotFound
from duly.limits import (
    ERROR_CHARACTERS,
    LETTER_TTL_SECONDS,
    PAGE,
    PAGE_DEFAULT,
    TRACEBACK_CHARACTERS,
)
from duly.store.guard_ops import EndLetter, Letter, PutLetter
from duly.store.protocol import Ledger, LetterFilter

Send = Callable[[Letter], object]
"""Gives a letter's message to its engine again, so that it really runs."""


class Ended(NamedTuple):
    """What a bulk act did: those that others had handled meanwhile are skipped."""

    done: int
    skipped: int


class Draft(NamedTuple):
    """A letter that is about to be written."""

    engine: str
    task: str
    arguments: str
    cause: str
    error: str
    traceback: str | None = None
    attempts: int = 1
    key: str | None = None
    queue: str | None = None
    options: str | None = None


class Letters:
    """The dead letters of one guard."""

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self._ledger = ledger
        self._senders: dict[str, Send] = {}

    def send_with(self, engine: str, send: Send) -> None:
        """Say how letters of an engine are given to it again."""
        self._senders[engine] = send

    def put(self, draft: Draft) -> str:
        """Keep a letter, for thirty days unless it is ended before; return its id."""
        ttl = round(LETTER_TTL_SECONDS * MICROSECONDS)
        bounded = draft._replace(
            error=draft.error[:ERROR_CHARACTERS],
            traceback=draft.traceback and draft.traceback[-TRACEBACK_CHARACTERS:],
        )
        op = PutLetter(id=new_id(), ttl=ttl, **bounded._asdict())
        self._ledger().apply([op])
        return op.id

    def get(self, letter_id: str) -> Letter:
        """Return a letter, open or not."""
        found = self._ledger().list_letters(LetterFilter(id=letter_id, state=None, limit=1))
        if not found:
            raise LetterNotFound(letter_id)
        return found[0]

    def list(
        self,
        *,
        state: str | None = "open",
        engine: str | None = None,
        task: str | None = None,
        cause: str | None = None,
        limit: int = PAGE_DEFAULT,
        cursor: str | None = None,
    ) -> Sequence[Letter]:
        """Return letters, newest first; the id of the last is the cursor of the next page."""
        if not 1 <= limit <= PAGE:
            raise BadOption(f"limit must be from 1 to {PAGE}, not {limit!r}")
        which = LetterFilter(None, state, engine, task, cause, before=cursor, limit=limit)
        return self._ledger().list_letters(which)

    def replay(
        self,
        letter_ids: str | Sequence[str] | None = None,
        *,
        which: LetterFilter | None = None,
        actor: str | None = None,
    ) -> Ended:
        """Give letters to their engine again, by id or by filter.

        A letter is ended when its message is sent: one that could not be stays open. Who dies in
        between leaves it open, so that its message may be sent twice; its key sees to it that it
        is carried out once.
        """
        return self._each(letter_ids, which, "replayed", acting(actor))

    def discard(
        self,
        letter_ids: str | Sequence[str] | None = None,
        *,
        which: LetterFilter | None = None,
        actor: str | None = None,
    ) -> Ended:
        """Say of letters, by id or by filter, that nothing needs to be done about them."""
        return self._each(letter_ids, which, "discarded", acting(actor))

    def _each(
        self,
        letter_ids: str | Sequence[str] | None,
        which: LetterFilter | None,
        state: str,
        actor: str,
    ) -> Ended:
        if (letter_ids is None) == (which is None):
            raise BadOption("name letters either by id or by filter")
        done = skipped = 0
        for letter in self._selected(letter_ids, which):
            if letter.state == "open" and state == "replayed":
                self._sender_for(letter)(letter)
            (was_open,) = self._ledger().apply([EndLetter(letter.id, state, actor)])
            done, skipped = done + was_open, skipped + (not was_open)
        return Ended(done, skipped)

    def _selected(
        self, letter_ids: str | Sequence[str] | None, which: LetterFilter | None
    ) -> Iterator[Letter]:
        if letter_ids is not None:
            named = (letter_ids,) if isinstance(letter_ids, str) else tuple(letter_ids)
            # All are looked up before any is touched: one wrong id leaves nothing half done.
            yield from [self.get(letter_id) for letter_id in named]
        elif which is not None:
            # Newest first, each once, although those that were sent may die again meanwhile.
            page = which._replace(state="open", limit=PAGE)
            while found := self._ledger().list_letters(page):
                yield from found
                page = page._replace(before=found[-1].id)

    def _sender_for(self, letter: Letter) -> Send:
        send = self._senders.get(letter.engine)
        if send is None:
            raise BadOption(
                f"letter {letter.id} is of {letter.engine}, whose application is not known here; "
                f"replay it where that is imported"
            )
        return send

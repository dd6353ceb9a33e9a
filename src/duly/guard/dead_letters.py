"""Dead letters of other engines: messages that failed for good, to replay or discard."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from duly.actor import resolve_actor
from duly.clock import MICROSECONDS, new_id
from duly.core.amounts import check_rate
from duly.core.key import check_words
from duly.core.record import DeadLetterGroup
from duly.errors import BadOption, DulyError, LetterNotFound, StoreError
from duly.guard.threaded_ledger import DeadLetterLedger
from duly.limits import (
    DEAD_LETTER_LEASE_SECONDS,
    DEAD_LETTER_RETRY_FAILURES,
    DEAD_LETTER_TTL_SECONDS,
    ERROR_CHARACTERS,
    PAGE,
    PAGE_DEFAULT,
    REASON_CHARACTERS,
    TRACEBACK_CHARACTERS,
)
from duly.store.ops.guard import (
    AcquireKey,
    DeadLetterRecord,
    EndDeadLetter,
    FailKey,
    Guarded,
    PutDeadLetter,
)
from duly.store.reads import DeadLetterFilter

SendDeadLetter = Callable[[DeadLetterRecord], object]
"""Sends a dead letter's message to its engine again, so that the message really runs.

Two such functions of one application compare equal.
"""

_LEASE = round(DEAD_LETTER_LEASE_SECONDS * MICROSECONDS)


class UnsentDeadLetter(NamedTuple):
    """A dead letter that could not be sent again, and why. It stays open."""

    letter_id: str
    engine: str
    problem: str
    elsewhere: bool
    """True if its application is not known here."""


class DeadLetterResult(NamedTuple):
    """The result of an action on dead letters.

    Those that others handle or have handled are skipped.
    """

    done: int
    skipped: int
    unsent: tuple[UnsentDeadLetter, ...] = ()


Progress = Callable[[int], None]
"""Called after each dead letter with the number processed so far."""


class SenderUnknown(BadOption):
    """The application of a dead letter is not known here, or two applications have its name."""

    def __init__(self, letter: DeadLetterRecord, known: int) -> None:
        whose = f"application {letter.application!r} of {letter.engine}"
        what = (
            f"{whose} is not known here; retry the dead letter in a process that imports that "
            "application under this name"
        )
        if known:
            what = (
                f"{known} applications of this name use this guard: {whose}; give each its own name"
            )
        super().__init__(f"dead letter {letter.id} cannot be sent again: {what}")


class LetterNotSent(DulyError):
    """Some dead letters could not be sent again. They stay open."""

    def __init__(self, ended: DeadLetterResult) -> None:
        first = ended.unsent[0]
        more = len(ended.unsent) - 1
        others = f", nor {more} other{'s' * (more > 1)}" if more else ""
        super().__init__(
            f"dead letter {first.letter_id} was not sent again{others}: {first.problem}; "
            f"{ended.done} {'was' if ended.done == 1 else 'were'} sent, all others stay open"
        )
        self.ended = ended


class DeadLetterDraft(NamedTuple):
    """A dead letter that is not written yet."""

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
    application: str = ""
    fingerprint: str = ""


class GuardDeadLetters:
    """The dead letters of one guard."""

    def __init__(
        self, ledger: Callable[[], DeadLetterLedger], namespace: str | None = None
    ) -> None:
        """Use the dead letters of one namespace in a ledger. None reads those of all namespaces."""
        self._ledger = ledger
        self._namespace = namespace
        self._senders: dict[tuple[str, str], set[SendDeadLetter]] = {}

    # -- writing and reading --

    def send_with(self, engine: str, send: SendDeadLetter, *, application: str = "") -> None:
        """Register the function that sends dead letters of an application to its engine again."""
        self._senders.setdefault((engine, application), set()).add(send)

    def put(self, draft: DeadLetterDraft, letter_id: str | None = None) -> str:
        """Store a dead letter for thirty days unless it is ended before. Return its id.

        Repeated calls with one id store it once.
        """
        ttl = round(DEAD_LETTER_TTL_SECONDS * MICROSECONDS)
        bounded = draft._replace(
            error=draft.error[:ERROR_CHARACTERS],
            traceback=draft.traceback and draft.traceback[-TRACEBACK_CHARACTERS:],
        )
        op = PutDeadLetter(
            id=letter_id or new_id(),
            ttl=ttl,
            namespace=self._namespace or "",
            **bounded._asdict(),
        )
        self._ledger().do(op)
        return op.id

    def get(self, letter_id: str) -> DeadLetterRecord:
        """Return a dead letter, open or not."""
        found = self.page(DeadLetterFilter(id=letter_id, state=None, limit=1))
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
    ) -> Sequence[DeadLetterRecord]:
        """Return dead letters, newest first. The last id is the cursor of the next page."""
        if not 1 <= limit <= PAGE:
            raise BadOption(f"limit must be from 1 to {PAGE}, not {limit!r}")
        return self.page(
            DeadLetterFilter(None, state, engine, task, cause, before=cursor, limit=limit)
        )

    def page(self, which: DeadLetterFilter) -> Sequence[DeadLetterRecord]:
        """Return the dead letters that a filter selects, newest first."""
        return self._ledger().list_dead_letters(which._replace(namespace=self._namespace))

    def select(self, which: DeadLetterFilter) -> Iterator[DeadLetterRecord]:
        """Return all open dead letters that a filter selects, newest first, each once.

        A message that is sent meanwhile may fail again. Its new dead letter is not included.
        """
        page = which._replace(state="open", limit=PAGE)
        while found := self.page(page):
            yield from found
            page = page._replace(before=found[-1].id)

    def groups(self, which: DeadLetterFilter) -> Sequence[DeadLetterGroup]:
        """Return open dead letters by engine, task and error, the largest group first."""
        place = which._replace(state="open", namespace=self._namespace)
        return self._ledger().list_dead_letter_groups(place)

    # -- operator actions --

    def can_send(self, letter: DeadLetterRecord) -> bool:
        """Return whether the application of a dead letter is known here."""
        return (letter.engine, letter.application) in self._senders

    def sends_for(self, engine: str) -> bool:
        """Return whether any application of an engine is known here."""
        return any(engine == known for known, _ in self._senders)

    def replay(
        self,
        letter_ids: str | Sequence[str] | None = None,
        *,
        which: DeadLetterFilter | None = None,
        actor: str | None = None,
        reason: str = "",
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> DeadLetterResult:
        """Send dead letters to their engine again, by id or by filter, at most `rate` per second.

        Only one caller at a time sends a dead letter, which ends when its message is sent. If
        sending fails, it stays open and the others continue. At the end, failures raise
        LetterNotSent if you passed ids, and are listed in `unsent` if you passed a filter. After a
        few consecutive failures the engine counts as down, and LetterNotSent is raised at once.

        If the process dies meanwhile, the dead letter stays open and can be sent again after a
        minute. Its key makes sure that the message is executed once.
        """
        check_rate(rate)
        who, why = resolve_actor(actor), _checked(reason)
        done, skipped, in_a_row = 0, 0, 0
        unsent: list[UnsentDeadLetter] = []
        for letter in self._selected(letter_ids, which):
            if rate is not None and done:
                threading.Event().wait(1 / rate)
            try:
                was_sent = self._replay(letter, who, why)
                done, skipped, in_a_row = done + was_sent, skipped + (not was_sent), 0
            except StoreError:
                raise
            except DulyError as error:
                unsent.append(_unsent(letter, error))
            except Exception as error:  # noqa: BLE001 - whatever the engine's client raises
                unsent.append(_unsent(letter, error))
                in_a_row += 1
            if progress is not None:
                progress(done + skipped + len(unsent))
            if in_a_row == DEAD_LETTER_RETRY_FAILURES:
                break
        ended = DeadLetterResult(done, skipped, tuple(unsent))
        if unsent and (letter_ids is not None or in_a_row == DEAD_LETTER_RETRY_FAILURES):
            raise LetterNotSent(ended)
        return ended

    def discard(
        self,
        letter_ids: str | Sequence[str] | None = None,
        *,
        which: DeadLetterFilter | None = None,
        actor: str | None = None,
        reason: str = "",
        progress: Progress | None = None,
    ) -> DeadLetterResult:
        """End dead letters, by id or by filter, because nothing needs to be done about them."""
        who, why = resolve_actor(actor), _checked(reason)
        done = skipped = 0
        for letter in self._selected(letter_ids, which):
            with self._claimed(letter, who) as is_open:
                was_ended = is_open and self._end(letter, "discarded", who, why)
            done, skipped = done + was_ended, skipped + (not was_ended)
            if progress is not None:
                progress(done + skipped)
        return DeadLetterResult(done, skipped)

    def _replay(self, letter: DeadLetterRecord, who: str, why: str) -> bool:
        if letter.state != "open":
            return False
        send = self._sender_for(letter)
        with self._claimed(letter, who) as is_open:
            if not is_open:
                return False
            send(letter)
            return self._end(letter, "replayed", who, why)

    def _end(self, letter: DeadLetterRecord, state: str, who: str, why: str) -> bool:
        was_open = self._ledger().do(EndDeadLetter(letter.id, state, who, why))
        return bool(was_open)

    @contextmanager
    def _claimed(self, letter: DeadLetterRecord, who: str) -> Iterator[bool]:
        """Keep other callers from a dead letter. Yield whether it is ours and still open.

        This takes a key of the ledger with a lease, so that a process that dies releases it. It
        cannot collide with keys of users, which all contain a slash.
        """
        take = AcquireKey(f"letter {letter.id}", new_id(), who, None, _LEASE, _LEASE)
        found: Guarded
        found = self._ledger().do(take)
        if not found.is_ours:
            yield False
            return
        try:
            # Read again, because another caller may have ended it since it was read.
            yield bool(self.page(DeadLetterFilter(id=letter.id, state="open", limit=1)))
        finally:
            with suppress(StoreError):
                self._ledger().do(FailKey(take.key, take.owner, found.fence, _LEASE))

    def _selected(
        self, letter_ids: str | Sequence[str] | None, which: DeadLetterFilter | None
    ) -> Iterator[DeadLetterRecord]:
        if (letter_ids is None) == (which is None):
            raise BadOption("name dead letters either by id or by filter")
        if letter_ids is not None:
            named = (letter_ids,) if isinstance(letter_ids, str) else tuple(letter_ids)
            # All ids are looked up before any is changed, so a wrong id leaves nothing half done.
            yield from [self.get(letter_id) for letter_id in named]
        elif which is not None:
            yield from self.select(which)

    def _sender_for(self, letter: DeadLetterRecord) -> SendDeadLetter:
        senders = self._senders.get((letter.engine, letter.application), set())
        if len(senders) != 1:
            raise SenderUnknown(letter, len(senders))
        (send,) = senders
        return send


def _unsent(letter: DeadLetterRecord, error: Exception) -> UnsentDeadLetter:
    words = str(error).partition("\n")[0][:ERROR_CHARACTERS]
    # duly's own errors are complete sentences.
    problem = words if isinstance(error, DulyError) else f"{type(error).__name__}: {words}"
    return UnsentDeadLetter(letter.id, letter.engine, problem, isinstance(error, SenderUnknown))


def _checked(reason: str) -> str:
    return check_words("reason", reason, REASON_CHARACTERS)

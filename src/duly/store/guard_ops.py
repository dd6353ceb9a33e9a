"""The verbs of the guard as values, their answers, and what is on record.

A store writes them, and so does a ledger that is no store (Redis): whoever can `apply` them can
guard.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple


class GuardedKey(NamedTuple):
    """A key of the guard, and how its body stands."""

    key: str
    state: str
    """held, done or failed."""
    holder: str
    fence: int
    attempts: int
    losses: int
    """How many attempts in a row, before this one, ended without a word."""
    left: int
    """Microseconds until a holder that has died may be replaced."""
    began_at: int
    ended_at: int | None
    kept_until: int | None
    result: str | None
    problem: str | None
    """Why the result of a body that is done could not be kept."""


class DeadLetterRecord(NamedTuple):
    """A message of another engine that nobody could carry out, with all it takes to replay it."""

    id: str
    engine: str
    task: str
    arguments: str
    """Those of the message: `[[positional…],{"name":value,…}]`."""
    key: str | None
    cause: str
    """permanent, exhausted, crashed, timeout or sent."""
    error: str
    traceback: str | None
    attempts: int
    queue: str | None
    options: str | None
    state: str
    """open, replayed or discarded."""
    created_at: int
    actor: str | None
    """Who ended it."""
    ended_at: int | None
    namespace: str = ""
    """That of the guard that keeps it."""
    application: str = ""
    """Which application of the engine sent its message, by name."""
    fingerprint: str = ""
    """Equal for letters of one error."""
    reason: str | None = None
    """Why it was ended, in the words of who did."""


class AcquireKey(NamedTuple):
    """Take a key in order to run its body, unless somebody does or has. Answer: Guarded.

    `owner` is drawn anew for every try: said twice, it takes the key once. All times are in
    microseconds; a `ttl` of None is for ever.
    """

    key: str
    owner: str
    holder: str
    """Who that is, for people."""
    fingerprint: str | None
    """Of what the body is to be given; None fits any."""
    lease: int
    ttl: int | None


class Guarded(NamedTuple):
    """How a key stands after an AcquireKey: ours, or in other hands, or done."""

    is_ours: bool
    state: str
    """held, done or failed."""
    fence: int
    holder: str
    left: int
    """Microseconds until a holder that has died may be replaced."""
    attempts: int
    losses: int
    """How many attempts in a row, before this one, ended without a word."""
    conflict: bool = False
    """It belongs to another fingerprint."""
    result: str | None = None
    problem: str | None = None
    """Why the result of a body that is done could not be kept."""


def guarded_from_row(op: AcquireKey, row: Sequence[Any]) -> Guarded:
    """Return how a key stands by its row, as both dialects select it."""
    owner, state, fence, holder, left, attempts, losses, fingerprint, result, problem = row
    return Guarded(
        owner == op.owner and state == "held",
        state,
        fence,
        holder,
        left,
        attempts,
        losses,
        None not in {op.fingerprint, fingerprint} and op.fingerprint != fingerprint,
        result,
        problem,
    )


class RenewKey(NamedTuple):
    """Give a holder its whole lease again. Answer: whether the key is still its own."""

    key: str
    owner: str
    fence: int
    lease: int


class FinishKey(NamedTuple):
    """Record that the body is done, and what it returned. Answer: whether the key was its own.

    Said twice, it is recorded once.
    """

    key: str
    owner: str
    fence: int
    ttl: int | None
    result: str | None = None
    problem: str | None = None


class FailKey(NamedTuple):
    """Let go of a key whose body failed: it may be tried again. Answer: as of FinishKey."""

    key: str
    owner: str
    fence: int
    ttl: int | None
    began: bool = True
    """Whether the body was begun; otherwise this was no attempt."""


class ForgetKey(NamedTuple):
    """Forget a key that nobody holds. Answer: whether there was one, or None if it is held."""

    key: str


class PutDeadLetter(NamedTuple):
    """Keep a dead letter; said twice, it is kept once. Answer: whether it is new."""

    id: str
    engine: str
    task: str
    arguments: str
    key: str | None
    cause: str
    error: str
    traceback: str | None
    attempts: int
    queue: str | None
    options: str | None
    """What else the engine needs to send the message again, as JSON."""
    ttl: int | None
    namespace: str = ""
    application: str = ""
    fingerprint: str = ""


class EndDeadLetter(NamedTuple):
    """Say of an open dead letter that it was replayed or discarded. Answer: whether it was open."""

    letter_id: str
    state: str
    actor: str
    reason: str = ""


GuardOp = AcquireKey | RenewKey | FinishKey | FailKey | ForgetKey | PutDeadLetter | EndDeadLetter

"""The keys of the guard, and the dead letters of other engines.

Stores carry out these ops, and so does a Redis: the guard needs nothing else of its database.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from duly.store.ops.op import Facts, Phase, op


class GuardedKey(NamedTuple):
    """A key of the guard, as stored."""

    key: str
    state: str
    """held, done or failed."""
    holder: str
    fence: int
    attempts: int
    losses: int
    """How many attempts in a row, before this one, ended because their process died."""
    left: int
    """Microseconds until the lease of the holder expires."""
    began_at: int
    ended_at: int | None
    kept_until: int | None
    result: str | None
    problem: str | None
    """Why the result could not be stored, if the key is done without one."""


class DeadLetterRecord(NamedTuple):
    """A failed message of another engine, with everything that is needed to send it again."""

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
    """The person who ended it."""
    ended_at: int | None
    namespace: str = ""
    """The namespace of the guard that keeps it."""
    application: str = ""
    """The name of the engine's application that sent the message."""
    fingerprint: str = ""
    """Equal for the dead letters of one error."""
    reason: str | None = None
    """Why the person ended it."""


class Guarded(NamedTuple):
    """The state of a key after an AcquireKey."""

    is_ours: bool
    state: str
    """held, done or failed."""
    fence: int
    holder: str
    left: int
    """Microseconds until the lease of the holder expires."""
    attempts: int
    losses: int
    """How many attempts in a row, before this one, ended because their process died."""
    conflict: bool = False
    """True if the key belongs to another fingerprint."""
    result: str | None = None
    problem: str | None = None
    """Why the result could not be stored, if the key is done without one."""


@op(Facts(Phase.OPERATE, "operate"))
class AcquireKey(NamedTuple):
    """Acquire a key in order to run its body, unless it is held or done.

    `owner` is random and new for every attempt, so a repeated op acquires the key once. Durations
    are in microseconds. A `ttl` of None keeps the key for ever.
    """

    key: str
    owner: str
    holder: str
    """The owner's name for people."""
    fingerprint: str | None
    """The fingerprint of the arguments. None fits every other one."""
    lease: int
    ttl: int | None

    def answer(self) -> Guarded:
        """Return the type of the answer."""
        raise NotImplementedError


def guarded_from_row(acquire: AcquireKey, row: Sequence[Any]) -> Guarded:
    """Return the state of a key from the row that both databases select."""
    owner, state, fence, holder, left, attempts, losses, fingerprint, result, problem = row
    return Guarded(
        owner == acquire.owner and state == "held",
        state,
        fence,
        holder,
        left,
        attempts,
        losses,
        None not in {acquire.fingerprint, fingerprint} and acquire.fingerprint != fingerprint,
        result,
        problem,
    )


@op(Facts(Phase.ENQUEUE, "operate"))
class RenewKey(NamedTuple):
    """Hold a key for its whole lease again. The answer is whether the key is still ours."""

    key: str
    owner: str
    fence: int
    lease: int

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate"))
class FinishKey(NamedTuple):
    """Record that the body of a key is done, and what it returned.

    The answer is whether the key was ours. A repeated op has the same answer.
    """

    key: str
    owner: str
    fence: int
    ttl: int | None
    result: str | None = None
    problem: str | None = None

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate"))
class FailKey(NamedTuple):
    """Release a key whose body failed, so that the body may run again.

    The answer is whether the key was ours. A repeated op has the same answer.
    """

    key: str
    owner: str
    fence: int
    ttl: int | None
    began: bool = True
    """False if the body did not begin. Then this was no attempt."""

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate"))
class ForgetKey(NamedTuple):
    """Forget a key. The answer is whether there was one. It is None if the key is held."""

    key: str

    def answer(self) -> bool | None:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate"))
class PutDeadLetter(NamedTuple):
    """Keep a dead letter. A repeated op keeps it once. The answer is whether it is new."""

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
    """As JSON: everything else that the engine needs to send the message again."""
    ttl: int | None
    namespace: str = ""
    application: str = ""
    fingerprint: str = ""

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate"))
class EndDeadLetter(NamedTuple):
    """Record that an open dead letter was sent again or discarded.

    The answer is whether it was open.
    """

    letter_id: str
    state: str
    actor: str
    reason: str = ""

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError

"""The life of a run: it is accepted, claimed and settled."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from duly.core.batches import bytes_of
from duly.core.concurrency_limits import ClaimLimits
from duly.core.outcome import ErrorText
from duly.core.record import Claims
from duly.core.verdict import Finish, Requeue, Verdict
from duly.store.ops.op import Facts, Phase, always, op


class Key(NamedTuple):
    """The idempotency key of a run: at most one run has it, under any name of its task."""

    text: str
    fingerprint: str
    ttl: int | None
    """How many microseconds the key is kept after the run has ended. None keeps it for ever."""
    active_only: bool
    other_names: tuple[str, ...] = ()
    """The other names of a task with aliases. The run with the key may have one of them."""

    def differs_from(self, fingerprint: str) -> bool:
        """Return whether a run has other arguments. An empty fingerprint is unknown."""
        return fingerprint not in {"", self.fingerprint}


class Accepted(NamedTuple):
    """The run that an Enqueue is answered with."""

    run_id: str
    new: bool = True
    """False if the run had the key before."""
    conflict: bool = False
    """True if the run that has the key has other arguments."""


def _size_of_enqueue(enqueue: "Enqueue") -> int:
    return bytes_of(enqueue.arguments)


_ENQUEUE = Facts(Phase.ENQUEUE, "enqueue", always, is_repeatable=True, size=_size_of_enqueue)


@op(_ENQUEUE)
class Enqueue(NamedTuple):
    """Accept a run. It is due at `at` (wall time), or after `delay`; both are in microseconds."""

    run_id: str
    task: str
    queue: str
    lane: str
    priority: int
    arguments: str
    delay: int = 0
    at: int | None = None
    expires: int | None = None
    """After how many microseconds the run is cancelled if it has not started."""
    tags: str | None = None
    key: Key | None = None

    def answer(self) -> Accepted:
        """Return the type of the answer."""
        raise NotImplementedError


@op(_ENQUEUE)
class EnqueueAgain(Enqueue):
    """An Enqueue that may have been written before. It is written only if it was not."""

    __slots__ = ()


class Want(NamedTuple):
    """Up to `limit` runs of one lane, from one queue or, if that is None, from every queue."""

    queue: str | None
    lane: str
    limit: int


@op(Facts(Phase.CLAIM, "claim"))
class ClaimRuns(NamedTuple):
    """Claim ready runs of the given tasks for a live worker."""

    worker_id: str
    wants: tuple[Want, ...]
    tasks: tuple[str, ...]
    after_queue: str = ""
    """The claim looks at the queues after this one first, so that no queue starves."""
    limits: ClaimLimits | None = None
    """Without them, the claim takes no runs under a limit of their task."""
    announcement: str | None = None
    """The text that tells listeners of the claim, if it takes a run. Only PostgreSQL sends it."""
    excluded: tuple[str, ...] = ()
    """The queues that a want for every queue leaves out."""

    def answer(self) -> Claims:
        """Return the type of the answer."""
        raise NotImplementedError


class Settled(Enum):
    """The answer to a Settle."""

    DONE = "done"
    CLAIM_LOST = "claim_lost"
    CANCEL_REQUESTED = "cancel_requested"
    """Nothing is written: the run would return to the queue, but there is a request to cancel it.
    The caller must decide again."""


def _size_of_settle(settle: "Settle") -> int:
    verdict = settle.verdict
    result = verdict.result if type(verdict) is Finish else None
    size = 0 if result is None else bytes_of(result)
    return size if settle.error is None else size + sum(map(bytes_of, settle.error))


def _is_any_queued_again(settles: "Sequence[Settle]", _answers: object) -> bool:
    return Requeue in {type(settle.verdict) for settle in settles}


@op(Facts(Phase.SETTLE, "settle", _is_any_queued_again, size=_size_of_settle))
class Settle(NamedTuple):
    """Record how one attempt ended. Fenced."""

    run_id: str
    claim_number: int
    outcome: str
    verdict: Verdict
    elapsed: int
    """How many microseconds the body took."""
    error: ErrorText | None = None
    keyed: bool = True
    """False if the claim said that the run has no key, so that none is looked for."""

    def answer(self) -> Settled:
        """Return the type of the answer."""
        raise NotImplementedError

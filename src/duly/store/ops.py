"""The verbs of a store as values, and their answers.

`Store.apply` writes a few of them in one transaction (with whatever others ask for at that moment)
and answers each. Expected refusals are answers; after an exception nothing of that op is written.
"""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Union

from duly.clock import MICROSECONDS
from duly.core.concurrency_limits import ClaimLimits
from duly.core.outcome import ErrorText
from duly.core.record import ClaimedRun
from duly.core.verdict import Verdict
from duly.limits import ACT_RETENTION_SECONDS, SESSION_SECONDS
from duly.store.duties import DutyTurn
from duly.store.schedule_ops import ScheduleOp
from duly.store.step_ops import StepOp

if TYPE_CHECKING:  # Programs that only enqueue need not pay for what few of them use.
    from duly.store.admin_ops import AdminOp
    from duly.store.bulk_ops import BulkOp
    from duly.store.carrier_ops import CarryOp
    from duly.store.guard_ops import GuardOp
    from duly.store.lock_ops import LockOp

# -- ops of the engine ---------------------------------------------------------------------------


class Key(NamedTuple):
    """At most one run per (task, key), whichever name of the task the run has."""

    text: str
    fingerprint: str
    ttl: int | None
    """Microseconds to keep the key after the run has ended; None is for ever."""
    active_only: bool
    other_names: tuple[str, ...] = ()
    """The other names of a task that has aliases: a run can have the key under one of them."""

    def differs_from(self, fingerprint: str) -> bool:
        """Return whether a run has other arguments; an empty fingerprint says nothing of them."""
        return fingerprint not in {"", self.fingerprint}


class Enqueue(NamedTuple):
    """Accept a run. `at` (wall time) or else `delay` says when; both in microseconds."""

    run_id: str
    task: str
    queue: str
    lane: str
    priority: int
    arguments: str
    delay: int = 0
    at: int | None = None
    expires: int | None = None  # Microseconds from now until it is cancelled if not started.
    tags: str | None = None
    key: Key | None = None


class EnqueueAgain(Enqueue):
    """An Enqueue that may have been written before; it is written only if it was not."""

    __slots__ = ()


class Accepted(NamedTuple):
    """What became of an Enqueue: the run's id, and whether this call made it."""

    run_id: str
    new: bool = True
    conflict: bool = False  # The key belongs to that run, which has other arguments.


class Want(NamedTuple):
    """Up to `limit` runs of one lane; a queue of None is every queue."""

    queue: str | None
    lane: str
    limit: int


class ClaimRuns(NamedTuple):
    """Take ready runs of the given tasks for a live worker. Answer: Claims."""

    worker_id: str
    wants: tuple[Want, ...]
    tasks: tuple[str, ...]
    after_queue: str = ""
    """Queues are asked in turn, beginning behind this one, so that none starves."""
    limits: ClaimLimits | None = None  # Without them, what is limited is not looked at.
    announcement: str | None = None
    """What to notify listeners of if it takes a run; PostgreSQL only, and not if it costs more."""
    excluded: tuple[str, ...] = ()
    """Queues of which nothing is taken, where a want is for every queue."""


class Settle(NamedTuple):
    """Record how one attempt ended. Answer: Settled."""

    run_id: str
    claim_number: int
    outcome: str
    verdict: Verdict
    elapsed: int
    """Microseconds the body took."""
    error: ErrorText | None = None
    keyed: bool = True
    """False spares the look for a key where the claim said there is none."""


class Settled(Enum):
    """The answer to a Settle."""

    DONE = "done"
    CLAIM_LOST = "claim_lost"
    CANCEL_REQUESTED = "cancel_requested"
    """It would have been queued again, but a cancel came in: decide again."""


Judge = Callable[[ClaimedRun], tuple[str, Verdict, ErrorText | None]]
"""Says, inside recovery's transaction, what becomes of a dead worker's run."""


class Recover(NamedTuple):
    """Declare a worker dead and settle every run it holds.

    Answer: list of run ids; None if it has beaten in the meantime and was left alone.
    """

    worker_id: str
    judge: Judge
    stopped: bool = False
    """It said good-bye itself."""
    beats: int | None = None
    """Only if its counter still stands here: since then, no beat may have been acknowledged."""


class RecoverOrphans(NamedTuple):
    """Settle running runs whose worker is not live, up to `limit`. Answer: list of run ids."""

    judge: Judge
    limit: int
    turn: DutyTurn | None = None


class HandBackUnknown(NamedTuple):
    """Give back runs the store says this worker holds and it knows not of. Answer: their ids."""

    worker_id: str
    held: frozenset[str]


class RegisterWorker(NamedTuple):
    """Make a worker known and live; said again, tell of tasks that were defined since."""

    worker_id: str
    host: str
    pid: int
    lease_seconds: float
    queues: str
    tasks: str
    lanes: str = "{}"  # By task: the lane in which this worker sees to its runs.
    retentions: str = "{}"  # By task: microseconds to keep its runs, where it says so itself.
    version: str | None = None  # Of the application, if it tells one.
    engine: str | None = None  # The versions of duly and Python.


class Tick(NamedTuple):
    """Bounded upkeep: promote what is due, park and un-park, expire. Answer: Ticked."""

    limit: int
    turn: DutyTurn | None = None


class Ticked(NamedTuple):
    """What a Tick did, and in how many microseconds the next run becomes due."""

    promoted: int
    parked: int
    expired: int
    next_due_in: int | None
    has_more: bool = False
    """Whether it left runs because there were many, or because their arguments are large."""


class Prune(NamedTuple):
    """Delete what ended longer ago than so many microseconds, up to `limit` of each kind.

    A run stays for as long as its task says, and never goes before its key. Answer: Pruned.
    """

    older_than: int
    limit: int
    dead_older_than: int | None = None  # where dead letters are kept for another time
    acts_older_than: int = round(ACT_RETENTION_SECONDS) * 1_000_000
    after: int = 0
    """Where to go on looking for runs that are kept for a shorter time than others."""
    turn: DutyTurn | None = None

    @property
    def acts_kept(self) -> int:
        """For how many microseconds acts are kept: a sign-out for longer than its session lasts."""
        return max(self.acts_older_than, SESSION_SECONDS * MICROSECONDS)


class Pruned(NamedTuple):
    """What a Prune did."""

    runs: int
    """How many are gone."""
    most: int
    """Of the kind of which it met most, so many; the limit if there may be more."""
    after: int
    """For the next Prune."""


class RollUpCounts(NamedTuple):
    """Add counts of ended runs up as they grow old. Answer: how many of one span, at most."""

    limit: int
    turn: DutyTurn | None = None


# -- ops of the journal --------------------------------------------------------------------------


class SetProgress(NamedTuple):
    """Fenced. Answer: whether the claim still holds."""

    run_id: str
    claim_number: int
    fraction: float | None
    text: str | None


class AddLogs(NamedTuple):
    """Fenced. `lines` are (wall time, level, message). Answer: whether the claim still holds."""

    run_id: str
    claim_number: int
    lines: tuple[tuple[int, str, str], ...]


class RestoreLogs(NamedTuple):
    """As AddLogs, for a dead worker: only those of its lines that are not in the store yet."""

    run_id: str
    claim_number: int
    lines: tuple[tuple[int, str, str], ...]


# -- ops of the operator -------------------------------------------------------------------------


class Cancel(NamedTuple):
    """Cancel a queued run, ask a running one. Answer: a state, "requested", or None (unknown)."""

    run_id: str
    actor: str
    reason: str = ""


class RetryRun(NamedTuple):
    """Queue a final run again, in its next generation. Answer: Redriven."""

    run_id: str
    actor: str
    reason: str = ""
    delay: int = 0
    arguments: str | None = None
    states: tuple[str, ...] = ("failed", "interrupted", "cancelled", "succeeded")
    generation: int | None = None
    """Only if it is still in this generation, so that two redrives at once redrive once."""
    lane: str | None = None
    fresh_effects: bool = False
    """Whether its effects get other keys than before."""
    other_names: tuple[str, ...] = ()
    """The other names of the run's task: a live run that has the key under one of them has it."""
    from_step: str | None = None
    """Forget what this step and those that began after it came to, so that they run again."""


class RetriedRun(NamedTuple):
    """What became of a Redrive: `state` is None for an unknown run."""

    done: bool
    state: str | None
    held_by: str | None = None
    """The live run that has its key, if that is why it was refused; `state` is that run's."""
    unresolved: tuple[str, ...] = ()
    """The steps that a person has to resolve first, if that is why it was refused."""


class DiscardDead(NamedTuple):
    """End a dead letter as cancelled. Answer: Redriven (done or not)."""

    run_id: str
    actor: str
    reason: str


class PauseQueue(NamedTuple):
    """Pause or resume a queue."""

    queue: str
    paused: bool
    actor: str
    reason: str = ""


class ResetKey(NamedTuple):
    """Forget a key. Answer: whether there was one."""

    task: str
    key: str
    actor: str
    run_id: str | None = None  # Only if it is still that run's.


Op = Union[
    Enqueue,
    ClaimRuns,
    Settle,
    Recover,
    RecoverOrphans,
    HandBackUnknown,
    RegisterWorker,
    Tick,
    Prune,
    RollUpCounts,
    SetProgress,
    AddLogs,
    RestoreLogs,
    Cancel,
    RetryRun,
    DiscardDead,
    PauseQueue,
    ResetKey,
    ScheduleOp,
    StepOp,
    "AdminOp",
    "BulkOp",
    "LockOp",
    "GuardOp",
    "CarryOp",
]

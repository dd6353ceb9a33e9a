"""What is known of what happened: the input of the checker."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class EnqueueRequest(NamedTuple):
    """A producer's note on one enqueue: invoked, then accepted if the call returned."""

    kind: str
    run_id: str
    task: str


class Transition(NamedTuple):
    """One transition of a run, written by a trigger inside the transition's own transaction."""

    sequence: int
    run_id: str
    kind: str
    """ready, wait, claim, requeue, end, rewrite or revive."""
    claim_number: int
    generation: int
    state: str | None
    worker_id: str | None
    outcome: str | None
    at: int


class BodySignal(NamedTuple):
    """A body's sign of life: begin, beat or end."""

    kind: str
    run_id: str
    claim_number: int
    generation: int
    task: str
    pid: int
    at: float
    """Monotonic seconds, one clock for all processes of a machine."""
    wall: int


class Effect(NamedTuple):
    """What a body did to the world: a row in its transaction, or a line outside."""

    run_id: str
    claim_number: int
    generation: int
    task: str
    place: str
    """row or line."""


class Freeze(NamedTuple):
    """A process that was stopped for a while."""

    pid: int
    stopped_at: float
    continued_at: float


class RunAtEnd(NamedTuple):
    """A run as the store shows it when all is over."""

    run_id: str
    task: str
    state: str
    cause: str | None
    generation: int
    claim_number: int
    attempt: int
    crashes: int
    result: str | None
    places: int
    """In how many tables it lies."""


class AttemptAtEnd(NamedTuple):
    """A recorded attempt."""

    run_id: str
    claim_number: int
    generation: int
    outcome: str
    worker_id: str | None


class DueInstant(NamedTuple):
    """An instant at which a schedule had to fire, by its expression alone."""

    schedule: str
    version: int
    instant: int


class FiringAtEnd(NamedTuple):
    """What the ledger says became of an instant, or of a row of them that were skipped."""

    schedule: str
    version: int
    instant: int
    last_instant: int
    instants: int
    outcome: str
    reason: str | None
    run_id: str | None


class ScheduledRun(NamedTuple):
    """A run that says which schedule made it."""

    run_id: str
    schedule: str


@dataclass(slots=True)
class History:
    """Everything that is known of what happened."""

    requests: Sequence[EnqueueRequest] = ()
    events: Sequence[Transition] | None = None
    """None where no triggers were installed."""
    body_signals: Sequence[BodySignal] = ()
    effects: Sequence[Effect] = ()
    freezes: Sequence[Freeze] = ()
    embedded: frozenset[tuple[str, int]] = frozenset()
    """Claims (run and number) of workers inside a program, which nobody ends: a body may go on
    there beside its heir."""
    runs: Sequence[RunAtEnd] = ()
    attempts: Sequence[AttemptAtEnd] = ()
    transactional: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    due: Sequence[DueInstant] = ()
    firings: Sequence[FiringAtEnd] = ()
    scheduled_runs: Sequence[ScheduledRun] = ()
    may_skip: frozenset[str] = frozenset()
    """Schedules whose policy lets instants pass without a run."""
    missing: Sequence[str] = ()
    """Accepted runs that a snapshot taken on the way did not find."""
    went_back: Sequence[str] = ()
    """Runs that a snapshot found final and a later one in another state."""
    damage: Sequence[str] = ()
    """What the database's own check complains about."""
    workers_left_live: Sequence[str] = ()
    """Workers the store calls live though their processes are gone and were recovered."""
    unsettled_after: float | None = None
    """Seconds after the last strike at which something was still unsettled; None if nothing was."""
    charges_allowed: bool = True
    """Whether anything in this history gave a reason to charge a run for a crash."""

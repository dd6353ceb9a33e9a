"""The recorded history, which is the input of the checker."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class EnqueueRequest(NamedTuple):
    """A producer's record of one enqueue: invoked, then accepted if the call returned."""

    kind: str
    run_id: str
    task: str


class Transition(NamedTuple):
    """One transition of a run, written by a trigger in the transition's own transaction."""

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
    """A sign of life from a body: begin, beat or end."""

    kind: str
    run_id: str
    claim_number: int
    generation: int
    task: str
    pid: int
    at: float
    """Monotonic seconds, from one clock for all processes of a machine."""
    wall: int


class Effect(NamedTuple):
    """The effect of a body: a row in its transaction, or a line outside of it."""

    run_id: str
    claim_number: int
    generation: int
    task: str
    place: str
    """row or line."""


class Freeze(NamedTuple):
    """A process that was frozen for a while."""

    pid: int
    stopped_at: float
    continued_at: float


class RunAtEnd(NamedTuple):
    """A run in the store after the trial."""

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
    """The number of tables that contain the run."""


class AttemptAtEnd(NamedTuple):
    """A recorded attempt."""

    run_id: str
    claim_number: int
    generation: int
    outcome: str
    worker_id: str | None


class DueInstant(NamedTuple):
    """An instant at which a schedule had to fire, derived only from its expression."""

    schedule: str
    version: int
    instant: int


class FiringAtEnd(NamedTuple):
    """The firing of an instant, or of several consecutive skipped ones."""

    schedule: str
    version: int
    instant: int
    last_instant: int
    instants: int
    outcome: str
    reason: str | None
    run_id: str | None


class ScheduledRun(NamedTuple):
    """A run tagged with the schedule that created it."""

    run_id: str
    schedule: str


@dataclass(slots=True)
class History:
    """Everything that is known about what happened."""

    requests: Sequence[EnqueueRequest] = ()
    transitions: Sequence[Transition] | None = None
    """None if no triggers were installed."""
    body_signals: Sequence[BodySignal] = ()
    effects: Sequence[Effect] = ()
    freezes: Sequence[Freeze] = ()
    embedded: frozenset[tuple[str, int]] = frozenset()
    """Claims (run and number) of workers inside a program.

    Nothing ends such a program, so a body may continue there while its successor runs.
    """
    runs: Sequence[RunAtEnd] = ()
    attempts: Sequence[AttemptAtEnd] = ()
    transactional: frozenset[str] = frozenset()
    hold_tasks: frozenset[str] = frozenset()
    due: Sequence[DueInstant] = ()
    firings: Sequence[FiringAtEnd] = ()
    scheduled_runs: Sequence[ScheduledRun] = ()
    may_skip: frozenset[str] = frozenset()
    """Schedules whose policy lets instants pass without a run."""
    missing: Sequence[str] = ()
    """Accepted runs that a snapshot during the trial did not find."""
    went_back: Sequence[str] = ()
    """Runs that one snapshot found final and a later one in another state."""
    damage: Sequence[str] = ()
    """The problems that the database's own check reports."""
    workers_left_live: Sequence[str] = ()
    """Workers that the store calls live although their processes are gone and were recovered."""
    unfinished_after: float | None = None
    """The seconds that the last drain allowed, if some runs had still not ended afterwards."""
    crash_charges_allowed: bool = True
    """Whether anything in this history gave a reason to charge a run for a crash."""

"""The verbs about steps and events, as values."""

from typing import NamedTuple

from duly.store.duties import DutyTurn


class BeginStep(NamedTuple):
    """Note that a run has come to a step, and end one that waits for nothing any more.

    Answer: its StepRecord, as it was if it is known; None if the claim is lost.
    """

    run_id: str
    claim_number: int
    name: str
    kind: str
    awaited: str | None = None
    """The name of an event, or the ids of child runs as JSON; of a step, the one it lies in."""
    after: int | None = None
    """Microseconds until it is over in any case; None is never."""


class EndStep(NamedTuple):
    """Record what a step came to. Answer: whether the claim still holds."""

    run_id: str
    claim_number: int
    name: str
    result: str | None
    inside: str | None = None
    """The step or gather that it lies in."""


class ForgetStep(NamedTuple):
    """Take back that a step has begun: it is known to have failed. Answer: as above."""

    run_id: str
    claim_number: int
    name: str


class SendEvent(NamedTuple):
    """Say that something has happened, and rouse who waits for it. Answer: whether it is news."""

    name: str
    payload: str


class WakeRuns(NamedTuple):
    """Let runs go on that wait for nothing any more. Answer: how many do."""

    run_ids: tuple[str, ...]


class RecheckWaits(NamedTuple):
    """Look at some of all runs that wait, from that run id on. Answer: Rechecked."""

    after: str
    limit: int
    turn: DutyTurn | None = None
    """On PostgreSQL, an op with a turn starts a new pass over all waits only if a run has ended or
    an event was sent since the last complete pass began."""
    counted: str = ""
    """As answered to the first op of this pass."""


class Rechecked(NamedTuple):
    """How many were roused, and from where to look on; an empty text at the end."""

    roused: int
    after: str
    counted: str = ""
    """For the next op of this pass."""


class ResolveStep(NamedTuple):
    """Say of a step that a run was interrupted in that it is done, or is to run again.

    Answer: the names of the steps that this was said of: those that lie in it too.
    """

    run_id: str
    step: str
    actor: str
    reason: str
    is_done: bool
    result: str | None = None


StepOp = BeginStep | EndStep | ForgetStep | SendEvent | WakeRuns | RecheckWaits | ResolveStep

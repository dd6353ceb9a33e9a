"""The verbs about runs that another engine's workers run, as values."""

from typing import NamedTuple

from duly.carrier import CarrierMessage
from duly.store.duties import DutyTurn


class HandedOver(NamedTuple):
    """What came of it."""

    messages: list[CarrierMessage]
    """To be sent now."""
    undelivered: list[str]
    """Runs that were handed over as often as they may be, and have ended as dead letters."""


class HandOver(NamedTuple):
    """Mark runs as handed over that have not been, or not for too long. Answer: HandedOver.

    They are marked before they are sent: what is lost in between is sent again when it is stale.
    Times are in microseconds.
    """

    tasks: tuple[str, ...]
    stale: int
    """After how long a run that nobody has claimed is handed over again; then twice that."""
    longest: int
    """The longest that this grows to, and how long the last message has to be claimed."""
    limit: int
    most: int | None = None
    """How often a run is handed over in all, at least twice: the first sending may have failed."""


class PostponeHandOver(NamedTuple):
    """Hand runs over again after so many microseconds: sending them failed. Answer: how many."""

    run_ids: tuple[str, ...]
    after: int


class RerouteRuns(NamedTuple):
    """Move ready runs to where their tasks run now: to our own workers, or to another engine's.

    Only where all live workers that see to a task agree; else each side runs what is in its lanes.
    Answer: how many were moved, up to the limit each way.
    """

    limit: int
    turn: DutyTurn | None = None


class ClaimCarried(NamedTuple):
    """Take one run for a live worker if it still waits for this claim. Answer: Claim, or None."""

    worker_id: str
    run_id: str
    claim_number: int


CarryOp = HandOver | PostponeHandOver | RerouteRuns | ClaimCarried

"""The verbs about runs that another engine's workers run, as values."""

from typing import NamedTuple

A_DAY = 24 * 3600 * 1_000_000
"""How long a run that was handed over as often as it may be is left alone before the next look."""


class HandOver(NamedTuple):
    """Mark runs as handed over that have not been, or not for too long. Answer: list[Message].

    They are marked before they are sent: what is lost in between is sent again when it is stale.
    Times are in microseconds.
    """

    tasks: tuple[str, ...]
    stale: int
    """After how long a run that nobody has claimed is handed over again; then twice that."""
    longest: int
    """The longest that this grows to."""
    limit: int
    most: int | None = None
    """How often a run is handed over in all, at least twice: the first sending may have failed."""


class HandAgain(NamedTuple):
    """Hand runs over again after so many microseconds: sending them failed. Answer: how many."""

    run_ids: tuple[str, ...]
    after: int


class Relane(NamedTuple):
    """Move ready runs to where their tasks run now: to our own workers, or to another engine's.

    Only where all live workers that see to a task agree; else each side runs what is in its lanes.
    Answer: how many were moved, up to the limit each way.
    """

    limit: int


class ClaimCarried(NamedTuple):
    """Take one run for a live worker if it still waits for this claim. Answer: Claim, or None."""

    worker_id: str
    run_id: str
    claim_number: int


CarryOp = HandOver | HandAgain | Relane | ClaimCarried

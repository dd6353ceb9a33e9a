"""Runs that the workers of another engine run."""

from typing import NamedTuple

from duly.carrier import CarrierMessage
from duly.core.record import Claim
from duly.store.ops.op import Facts, Phase, if_found, op
from duly.store.ops.upkeep import DutyTurn


class HandedOver(NamedTuple):
    """The result of a HandOver."""

    messages: list[CarrierMessage]
    """The messages to send now."""
    undelivered: list[str]
    """The runs that were handed over as often as allowed. They have ended as dead letters."""


@op(Facts(Phase.OPERATE, "operate"))
class HandOver(NamedTuple):
    """Mark runs as handed over that never were, or whose message is stale.

    They are marked before their messages are sent: if a message is lost, it becomes stale and is
    sent again. Durations are in microseconds.
    """

    tasks: tuple[str, ...]
    stale: int
    """After this time, a run that no worker has claimed is handed over again. It doubles."""
    longest: int
    """The longest time until a message is stale, and the time for which the last one may wait."""
    limit: int
    most: int | None = None
    """How often a run is handed over in all: at least twice, since the first sending may fail."""

    def answer(self) -> HandedOver:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate"))
class PostponeHandOver(NamedTuple):
    """Hand runs over again after this time, because sending their messages failed.

    The answer is the number of these runs.
    """

    run_ids: tuple[str, ...]
    after: int

    def answer(self) -> int:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate", if_found, is_alone=True))
class RerouteRuns(NamedTuple):
    """Move ready runs to where their tasks run now: to our own workers, or to another engine's.

    Runs of a task are moved only if all live workers of the task agree. Otherwise each side runs
    the runs in its own lanes. The answer is the number of moved runs, up to `limit` each way.
    """

    limit: int
    turn: DutyTurn | None = None

    def answer(self) -> int | None:
        """Return the type of the answer. It is None if another worker has the duty."""
        raise NotImplementedError


@op(Facts(Phase.CLAIM, "claim"))
class ClaimCarried(NamedTuple):
    """Claim one run for a live worker if it still waits for this claim. The answer may be None."""

    worker_id: str
    run_id: str
    claim_number: int

    def answer(self) -> Claim | None:
        """Return the type of the answer."""
        raise NotImplementedError

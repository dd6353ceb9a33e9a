"""The steps of runs, and the events that runs wait for."""

from typing import NamedTuple

from duly.core.batches import bytes_of
from duly.core.record import StepRecord
from duly.store.ops.op import Facts, Phase, always, if_found, op
from duly.store.ops.operators import RetriedRun, RetryRun
from duly.store.ops.upkeep import DutyTurn


@op(Facts(Phase.OPERATE, "operate", is_repeatable=True))
class BeginStep(NamedTuple):
    """Record that a run has reached a step, and end the step if its wait is over. Fenced.

    The answer is the step. If it had begun before, the answer is the step as it was recorded then.
    It is None if the claim is lost.
    """

    run_id: str
    claim_number: int
    name: str
    kind: str
    awaited: str | None = None
    """The name of an event, or the ids of child runs as JSON; for a step, the enclosing step."""
    after: int | None = None
    """Microseconds until the wait is over in any case. None never ends it."""

    def answer(self) -> StepRecord | None:
        """Return the type of the answer."""
        raise NotImplementedError


def _size_of_step(step: "EndStep") -> int:
    return bytes_of(step.result)


@op(Facts(Phase.OPERATE, "operate", is_repeatable=True, size=_size_of_step))
class EndStep(NamedTuple):
    """Record the result of a step. Fenced. The answer is whether the claim still holds."""

    run_id: str
    claim_number: int
    name: str
    result: str | None
    inside: str | None = None
    """The enclosing step or gather."""

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate", is_repeatable=True))
class ForgetStep(NamedTuple):
    """Forget that a step has begun, because it failed. Fenced.

    The answer is whether the claim still holds.
    """

    run_id: str
    claim_number: int
    name: str

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.ENQUEUE, "operate", always, is_repeatable=True))
class SendEvent(NamedTuple):
    """Record that an event has happened, and wake the runs that wait for it.

    The answer is whether the event is new.
    """

    name: str
    payload: str

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate", if_found, is_alone=True))
class WakeRuns(NamedTuple):
    """Make those of these runs ready whose wait is over. The answer is their number."""

    run_ids: tuple[str, ...]

    def answer(self) -> int:
        """Return the type of the answer."""
        raise NotImplementedError


class Rechecked(NamedTuple):
    """The result of a RecheckWaits."""

    roused: int
    """The number of runs that are ready now."""
    after: str
    """Where the next op continues. It is empty at the end of a pass."""
    counted: str = ""
    """For the next op of this pass."""


@op(Facts(Phase.OPERATE, "operate", is_alone=True))
class RecheckWaits(NamedTuple):
    """Check the waits of up to `limit` waiting runs, in the order of their ids."""

    after: str
    """The run after which the check begins."""
    limit: int
    turn: DutyTurn | None = None
    """On PostgreSQL, an op with a turn starts a new pass over all waits only if a run has ended or
    an event was sent since the last complete pass began."""
    counted: str = ""
    """As answered to the first op of this pass."""

    def answer(self) -> Rechecked | None:
        """Return the type of the answer. It is None if another worker has the duty."""
        raise NotImplementedError


class ResolvedStep(NamedTuple):
    """The result of a ResolveStep."""

    steps: tuple[str, ...]
    """The resolved steps: the step and the steps inside it."""
    retried: RetriedRun


@op(Facts(Phase.OPERATE, "operate", always))
class ResolveStep(NamedTuple):
    """Record of a step during which a run was interrupted that it is done, or must run again.

    The run is queued again, unless other steps of it are unresolved. If it cannot be queued for
    another reason, nothing is recorded.
    """

    retry: RetryRun
    """Queues the run again. Its actor and its reason are also those of the resolution."""
    step: str
    is_done: bool
    result: str | None = None

    @property
    def run_id(self) -> str:
        """The run that was interrupted in the step."""
        return self.retry.run_id

    def answer(self) -> ResolvedStep:
        """Return the type of the answer."""
        raise NotImplementedError

"""Recovery of the runs of workers that are gone."""

from collections.abc import Callable
from typing import NamedTuple

from duly.core.outcome import ErrorText
from duly.core.record import ClaimedRun
from duly.core.verdict import Verdict
from duly.store.ops.op import Facts, Phase, if_found, op
from duly.store.ops.upkeep import DutyTurn

Judge = Callable[[ClaimedRun], tuple[str, Verdict, ErrorText | None]]
"""Decides, inside recovery's transaction, what becomes of a dead worker's run."""


@op(Facts(Phase.OPERATE, "recover", if_found))
class Recover(NamedTuple):
    """Declare a worker dead, and settle every run that it holds.

    The answer is the ids of these runs. It is None if the worker has beaten in the meantime and was
    left alone.
    """

    worker_id: str
    judge: Judge
    stopped: bool = False
    """True if the worker stopped in order."""
    beats: int | None = None
    """The worker is declared dead only if its counter of beats still has this value. After that, no
    beat of it may be acknowledged."""

    def answer(self) -> list[str] | None:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "recover", if_found, is_alone=True))
class RecoverOrphans(NamedTuple):
    """Settle running runs whose worker is not live, up to `limit`. The answer is their ids."""

    judge: Judge
    limit: int
    turn: DutyTurn | None = None

    def answer(self) -> list[str] | None:
        """Return the type of the answer. It is None if another worker has the duty."""
        raise NotImplementedError


@op(Facts(Phase.CLAIM, "recover", if_found))
class HandBackUnknown(NamedTuple):
    """Hand back the runs that the store says a worker holds and that the worker does not know.

    The answer is their ids. The op is written on the connection of claims, so that none is under
    way meanwhile.
    """

    worker_id: str
    held: frozenset[str]

    def answer(self) -> list[str]:
        """Return the type of the answer."""
        raise NotImplementedError

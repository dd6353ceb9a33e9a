"""Operator actions on many runs. The database keeps their progress, for all processes.

A page of runs, the counts and the place that was reached are one transaction. It is written only
by the owner, and only if the action is where the owner believes it to be. So no page is done or
counted twice, even if a process dies or another process takes over too early.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from duly.errors import RunNotFinal, StepNotResolved
from duly.limits import PAGE
from duly.store.ops.op import Facts, Phase, if_found, op
from duly.store.ops.operators import Cancel, DiscardDead, RetriedRun, RetryRun

RunAction = RetryRun | DiscardDead | Cancel
Answer = RetriedRun | str | None


@op(Facts(Phase.OPERATE, "operate"))
class StartBulk(NamedTuple):
    """Begin an action on many runs, with its audit entry. A repeated op begins it once.

    The answer is its id, or the id of the same action if that is under way.
    """

    id: str
    verb: str
    selection: str
    """The selected runs, as JSON."""
    digest: str
    """Equal for the same action on the same runs."""
    total: int
    owner: str
    act: str
    """Its name in the audit."""
    actor: str
    reason: str = ""

    def answer(self) -> str:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate", if_found, is_alone=True))
class AdvanceBulk(NamedTuple):
    """Carry out one page of an action.

    The answer is whether the owner still had the action, and it was where the owner believed.
    """

    id: str
    owner: str
    after: str | None
    """The last run that was looked at, as far as the owner knows."""
    reached: str | None
    acts: tuple[RunAction, ...] = ()
    skipped: int = 0
    """How many runs of the page cannot be acted on. Refused ones are counted in addition."""
    is_over: bool = False
    error: str | None = None

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate"))
class TakeBulk(NamedTuple):
    """Become the owner of the actions whose process has been silent for `lease` microseconds.

    The answer is their ids.
    """

    owner: str
    lease: int

    def answer(self) -> list[str]:
        """Return the type of the answer."""
        raise NotImplementedError


def is_done(answer: Answer) -> bool:
    """Return whether an action on a run changed it."""
    # The answer to a cancel is the state of the run if it had ended before.
    return answer.done if isinstance(answer, RetriedRun) else answer in {"cancelled", "requested"}


def refusals(acts: Sequence[RunAction], answers: Sequence[Answer]) -> Iterator[str]:
    """Yield why retries were refused: because of the run's key, or because of a step."""
    for act, answer in zip(acts, answers, strict=True):
        if isinstance(answer, RetriedRun):
            if answer.held_by is not None:
                yield str(RunNotFinal(answer.held_by, str(answer.state), retried=act.run_id))
            elif answer.unresolved:
                yield str(StepNotResolved(act.run_id, answer.unresolved))


class BulkCounts(NamedTuple):
    """The numbers that a page adds to the counts of its action."""

    done: int
    skipped: int
    refused: list[str]


def count_page(page: AdvanceBulk, answers: Sequence[Answer], refused: list[str]) -> BulkCounts:
    """Count what became of a page. `refused` are the reasons of earlier pages."""
    done = sum(map(is_done, answers))
    reasons = [*refused, *refusals(page.acts, answers)]
    return BulkCounts(done, page.skipped + len(answers) - done, reasons[:PAGE])

"""The verbs of acts on many runs. The database keeps their progress, for all processes.

A page of runs, the counts and the place that was reached are one transaction. It is written only by
the owner, and only if the act is where the owner believes it to be. So no page is done or counted
twice, even if a process dies or another one takes over too early.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from duly.errors import RunNotFinal, StepNotResolved
from duly.limits import PAGE
from duly.store.ops import Cancel, DiscardDead, RetriedRun, RetryRun

RunAction = RetryRun | DiscardDead | Cancel
Answer = RetriedRun | str | None


class StartBulk(NamedTuple):
    """Begin an act on many runs, with its line in the audit.

    Answer: its id, or that of the same act that is under way. Said twice, it begins once.
    """

    id: str
    verb: str
    selection: str
    """Which runs, as JSON."""
    digest: str
    """Equal for the same act on the same runs."""
    total: int
    owner: str
    act: str
    """Its name in the audit."""
    actor: str
    reason: str = ""


class AdvanceBulk(NamedTuple):
    """Do a page of an act. Answer: whether it was still its owner's, and where that believed."""

    id: str
    owner: str
    after: str | None
    """Where the owner believes that the act is: the last run that was looked at."""
    reached: str | None
    acts: tuple[RunAction, ...] = ()
    skipped: int = 0
    """How many of the page cannot be acted on; those whose act is refused come on top."""
    is_over: bool = False
    error: str | None = None


class TakeBulk(NamedTuple):
    """Become the owner of acts whose process has been silent for so long. Answer: their ids."""

    owner: str
    lease: int


BulkOp = StartBulk | AdvanceBulk | TakeBulk


def is_done(answer: Answer) -> bool:
    """Return whether an act on a run changed it."""
    # Of a cancel, a run that had ended before answers with its state.
    return answer.done if isinstance(answer, RetriedRun) else answer in {"cancelled", "requested"}


def refusals(acts: Sequence[RunAction], answers: Sequence[Answer]) -> Iterator[str]:
    """Return why some runs were not retried: for their key, or for a step."""
    for op, answer in zip(acts, answers, strict=True):
        if isinstance(answer, RetriedRun):
            if answer.held_by is not None:
                yield str(RunNotFinal(answer.held_by, str(answer.state), retried=op.run_id))
            elif answer.unresolved:
                yield str(StepNotResolved(op.run_id, answer.unresolved))


class BulkCounts(NamedTuple):
    """What a page adds to the counts of its act."""

    done: int
    skipped: int
    refused: list[str]


def count_page(op: AdvanceBulk, answers: Sequence[Answer], refused: list[str]) -> BulkCounts:
    """Count what became of a page; `refused` are the reasons of earlier pages."""
    done = sum(map(is_done, answers))
    reasons = [*refused, *refusals(op.acts, answers)]
    return BulkCounts(done, op.skipped + len(answers) - done, reasons[:PAGE])

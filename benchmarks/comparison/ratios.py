"""The statistics of a comparison: the median ratio, its interval, and the verdict."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

FEWEST_ROUNDS = 12
SLOWEST_RATIO = 0.95
CONFIDENCE = 0.9
RESAMPLES = 5_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """The speeds of two builds in one workload, round by round."""

    workload: str
    store: str
    base: Sequence[float]
    head: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """The head's speed over the base's, per round: both halves of a round saw one machine."""
        return [head / base for base, head in zip(self.base, self.head, strict=True)]

    @property
    def ratio(self) -> float:
        """The median ratio; above 1 the head is faster."""
        return median(self.ratios)

    def interval(self) -> tuple[float, float]:
        """Return the bootstrap interval of the median ratio."""
        ratios = self.ratios
        draw = random.Random(len(ratios))
        medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
        tail = (1 - CONFIDENCE) / 2
        return medians[int(RESAMPLES * tail)], medians[int(RESAMPLES * (1 - tail)) - 1]

    @property
    def is_slower(self) -> bool:
        """True if the whole interval is below the slowest ratio that is accepted."""
        return self.interval()[1] < SLOWEST_RATIO


def table(comparisons: Sequence[Comparison]) -> str:
    """Format the comparisons for people."""
    rows = [("workload", "store", "base", "head", "ratio", f"{CONFIDENCE:.0%} interval", "")]
    for comparison in comparisons:
        low, high = comparison.interval()
        rows.append(
            (
                comparison.workload,
                comparison.store,
                f"{median(comparison.base):,.0f}/s",
                f"{median(comparison.head):,.0f}/s",
                f"{comparison.ratio:.3f}",
                f"{low:.3f} to {high:.3f}",
                "SLOWER" if comparison.is_slower else "ok",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )

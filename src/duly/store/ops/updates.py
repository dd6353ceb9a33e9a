"""The reports of a running attempt about itself. All of these ops are fenced."""

from typing import NamedTuple

from duly.core.batches import bytes_of
from duly.store.ops.op import Facts, Phase, op


@op(Facts(Phase.UPDATE, "operate"))
class SetProgress(NamedTuple):
    """Record the progress of an attempt. The answer is whether the claim still holds."""

    run_id: str
    claim_number: int
    fraction: float | None
    text: str | None

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


def _size_of_lines(logs: "AddLogs | RestoreLogs") -> int:
    return sum(bytes_of(message) for _, _, message in logs.lines)


@op(Facts(Phase.UPDATE, "operate", size=_size_of_lines))
class AddLogs(NamedTuple):
    """Record log lines of an attempt. The answer is whether the claim still holds."""

    run_id: str
    claim_number: int
    lines: tuple[tuple[int, str, str], ...]
    """Wall time, level and message of each line."""

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.UPDATE, "operate", size=_size_of_lines))
class RestoreLogs(NamedTuple):
    """Record those log lines of an attempt that the store does not have yet.

    This is for lines that may have been written before: those of a dead worker, and those of a
    call that failed. The answer is whether the claim still holds.
    """

    run_id: str
    claim_number: int
    lines: tuple[tuple[int, str, str], ...]

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


RunUpdate = AddLogs | RestoreLogs | SetProgress
"""A report of a running attempt about itself."""

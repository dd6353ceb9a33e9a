"""Limits on how many runs are running at once, over all workers.

A limited run waits in a lane of its own kind: `~task key slot`, where the slot is the lane that it
would wait in without a limit. So other runs' claims never walk past it, and what counts against a
limit is told by the lanes of the runs that are running.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote, unquote

from duly.core.secret_names import REDACTED
from duly.limits import LIMITS_BATCH

LIMITED_PREFIX = "~"
"""Lanes from here on are limited; no other begins so, and none sorts behind it."""


class ClaimLimits(NamedTuple):
    """What a claim knows of limits: how many runs of each task, and where to begin to look."""

    capacities: dict[str, int]
    """By task, for each of its keys; a task that is not there has none (any more)."""
    after: str = ""
    """The limit behind which to begin, so that none starves."""
    is_first: bool = False
    """Whether what is limited is asked before what is not, for the same reason."""
    names: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """All names of a task, by each of its names; only tasks that have aliases."""

    def ranges(self, lane: str) -> list[tuple[str, str]]:
        """Return where the lanes are that count against the same limit, under each task name."""
        task = task_of(lane)
        return ranges_of(lane, self.names.get(task, (task,)))


class LimitScan(NamedTuple):
    """Looks that follow one another, at some limits each, until together they have seen all."""

    start: str = ""
    """The limit behind which the first of them began."""
    has_wrapped: bool = False
    """Whether they have come past the last limit, and begun again with the first."""

    def remaining(self, after: str, last: str) -> "LimitScan | None":
        """Return what is left behind a look from one limit to another; None if nothing is."""
        turns = last <= after
        if turns and self.has_wrapped:
            return None
        has_turned = turns or self.has_wrapped
        return None if has_turned and last >= self.start else LimitScan(self.start, has_turned)


def rotated_lanes(read: Callable[[str], list[str]], after: str) -> tuple[list[str], bool]:
    """Return limited lanes, first those behind `after`, and whether there may be more.

    `read` returns up to LIMITS_BATCH of those behind a lane.
    """
    lanes = batch = read(after)
    if len(lanes) < LIMITS_BATCH and after:
        batch = [lane for lane in read("") if lane <= after]
        lanes = lanes + batch
    return lanes, len(batch) >= LIMITS_BATCH


def limited_lane(slot: str, task: str, key: str = "") -> str:
    """Name the lane of a run that counts against a limit of its task, or of that key of it."""
    return f"{LIMITED_PREFIX}{task} {quote(key, safe=':/@+=-_.')} {slot}"


def is_limited(lane: str) -> bool:
    """Say whether runs of this lane count against a limit."""
    return lane.startswith(LIMITED_PREFIX)


def slot_of(lane: str) -> str:
    """Name the kind of slot that runs of this lane need."""
    return lane.rpartition(" ")[2] if is_limited(lane) else lane


def task_of(lane: str) -> str:
    """Name the task whose limit it is."""
    return lane[1:].partition(" ")[0]


def key_of(lane: str) -> str:
    """Name the key that has the limit; empty if the task as a whole has."""
    return unquote(lane.split(" ")[1])


def shown_lane(lane: str) -> str:
    """Return a lane as it may be shown: the key of a limit may be a secret of the call."""
    if not is_limited(lane) or not key_of(lane):
        return lane
    return limited_lane(slot_of(lane), task_of(lane), REDACTED)


def range_of(lane: str) -> tuple[str, str]:
    """Return from where on, and up to where, the lanes lie that count against the same limit."""
    low = lane.rpartition(" ")[0]
    # A blank is followed by "!", and no other character lies between them.
    return f"{low} ", f"{low}!"


def ranges_of(lane: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the range of lanes that count against the same limit, for each name of the task.

    They are sorted, so that every process locks them in the same order.
    """
    rest = lane[len(LIMITED_PREFIX) + len(task_of(lane)) :]
    return sorted(range_of(f"{LIMITED_PREFIX}{name}{rest}") for name in names)


def with_slot(lane: str, wanted: str | None) -> str:
    """Name the lane of a run that is queued again, given the lane its task asks for now.

    A limit that a run was accepted under stays with it; what changes is the slot.
    """
    if wanted is None:
        return lane
    if not is_limited(lane):
        return wanted
    return f"{lane.rpartition(' ')[0]} {slot_of(wanted)}"

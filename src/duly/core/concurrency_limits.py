"""Limits on how many runs are running at once, over all workers.

A limited run waits in a lane of its own kind: `~task key slot`, where the slot is the lane it would
use without a limit. So claims of other runs never scan it, and the lanes of the running runs show
what counts against a limit.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote, unquote

from duly.core.secret_names import REDACTED
from duly.limits import LIMITS_BATCH

LIMITED_PREFIX = "~"
"""Every lane that starts with this is limited. No other lane sorts after it."""


class ClaimLimits(NamedTuple):
    """A claim's knowledge about limits: the capacity of each task, and where to start checking."""

    capacities: dict[str, int]
    """The capacity of each key of a task, by task name. A task that is absent has no limit."""
    after: str = ""
    """The limit after which the claim starts checking, so that no limit starves."""
    is_first: bool = False
    """True if limited runs are claimed before unlimited ones, so that neither kind starves."""
    names: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """All names of a task, by each of its names. Only tasks with aliases are listed."""

    def ranges(self, lane: str) -> list[tuple[str, str]]:
        """Return the ranges of lanes that count against the same limit, one for each task name."""
        task = task_of(lane)
        return ranges_of(lane, self.names.get(task, (task,)))


class LimitScan(NamedTuple):
    """The progress of several claims that together check all limits, some limits per claim."""

    start: str = ""
    """The limit after which the first of these claims started."""
    has_wrapped: bool = False
    """True if these claims passed the last limit and continued with the first."""

    def remaining(self, after: str, last: str) -> "LimitScan | None":
        """Return what remains after a claim checked the limits from `after` to `last`, or None."""
        turns = last <= after
        if turns and self.has_wrapped:
            return None
        has_turned = turns or self.has_wrapped
        return None if has_turned and last >= self.start else LimitScan(self.start, has_turned)


def rotated_lanes(read: Callable[[str], list[str]], after: str) -> tuple[list[str], bool]:
    """Return limited lanes, those after `after` first, and whether there may be more.

    `read` returns up to LIMITS_BATCH of the lanes after a given lane.
    """
    lanes = batch = read(after)
    if len(lanes) < LIMITS_BATCH and after:
        batch = [lane for lane in read("") if lane <= after]
        lanes = lanes + batch
    return lanes, len(batch) >= LIMITS_BATCH


def limited_lane(slot: str, task: str, key: str = "") -> str:
    """Return the lane of a run that counts against a limit of its task, or of one key of it."""
    return f"{LIMITED_PREFIX}{task} {quote(key, safe=':/@+=-_.')} {slot}"


def is_limited(lane: str) -> bool:
    """Return whether runs of this lane count against a limit."""
    return lane.startswith(LIMITED_PREFIX)


def slot_of(lane: str) -> str:
    """Return the kind of slot that runs of this lane need."""
    return lane.rpartition(" ")[2] if is_limited(lane) else lane


def task_of(lane: str) -> str:
    """Return the task that has the limit."""
    return lane[1:].partition(" ")[0]


def key_of(lane: str) -> str:
    """Return the key that has the limit. Empty if the limit is for the whole task."""
    return unquote(lane.split(" ")[1])


def shown_lane(lane: str) -> str:
    """Return a lane in a form that may be shown. The key of a limit may be a secret of the call."""
    if not is_limited(lane) or not key_of(lane):
        return lane
    return limited_lane(slot_of(lane), task_of(lane), REDACTED)


def range_of(lane: str) -> tuple[str, str]:
    """Return the bounds of the lanes that count against the same limit."""
    low = lane.rpartition(" ")[0]
    # "!" directly follows a blank, so no other character sorts between them.
    return f"{low} ", f"{low}!"


def ranges_of(lane: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the range of lanes that count against the same limit, for each name of the task.

    The ranges are sorted, so that every process locks them in the same order.
    """
    rest = lane[len(LIMITED_PREFIX) + len(task_of(lane)) :]
    return sorted(range_of(f"{LIMITED_PREFIX}{name}{rest}") for name in names)


def with_slot(lane: str, wanted: str | None) -> str:
    """Return the lane of a run that is queued again, given the lane its task asks for now.

    A run keeps the limit that it was accepted under. Only the slot changes.
    """
    if wanted is None:
        return lane
    if not is_limited(lane):
        return wanted
    return f"{lane.rpartition(' ')[0]} {slot_of(wanted)}"

"""The ops of schedules, and their answers."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # Programs that only enqueue need no cron expressions.
    from duly.core.schedule_plans import PlannedSchedule


class FireSchedules(NamedTuple):
    """Write the plans of schedules that nobody has changed since they were read. Answer: Fired."""

    planned: "tuple[PlannedSchedule, ...]"
    ahead: tuple[str, ...] = ()
    """Schedules that fired by a clock that was ahead: their cursors go back first."""


class Fired(NamedTuple):
    """How many schedules were written, and how many runs that made."""

    looked_at: int
    runs: int
    has_more: bool = False
    """Whether more schedules may be due."""
    rewound: int = 0
    """How many schedules continue from now after a clock that was ahead."""

    def __bool__(self) -> bool:
        """Say whether there is something new to claim."""
        return self.runs > 0


class PutSchedule(NamedTuple):
    """Add a schedule, or change the one of that name. Answer: Put, or Behind."""

    name: str
    source: str
    place: str
    task: str
    queue: str
    lane: str
    priority: int
    arguments: str
    trigger: str
    rules: str
    expires: int | None = None
    on_duplicate: str = "replace"
    """What becomes of one that is there already: "replace", "keep" or "error"."""


class PutScheduleResult(NamedTuple):
    """What became of a PutSchedule: "created", "changed", "unchanged", "kept", "refused"."""

    what: str
    source: str
    """Of the schedule that is there."""
    place: str


class ScheduleBehind:
    """A schedule has missed more than one look accounts for; a part is, and one must ask again."""


class SetScheduleState(NamedTuple):
    """Pause, resume ("active") or remove a schedule. Answer: its state before, None, or Behind.

    One that has ended, and is not to be removed, is left as it is.
    """

    name: str
    state: str
    actor: str
    reason: str = ""


class RunSchedule(NamedTuple):
    """Fire now, beside all due instants. Answer: the run's id, or None (unknown)."""

    name: str
    actor: str
    reason: str = ""


class BackfillSchedule(NamedTuple):
    """Run these instants unless they have run or are to come.

    Answer: the runs' ids, None (unknown), or Behind.
    """

    name: str
    instants: tuple[int, ...]
    actor: str
    reason: str = ""


ScheduleOp = FireSchedules | PutSchedule | SetScheduleState | RunSchedule | BackfillSchedule

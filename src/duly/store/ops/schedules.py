"""Schedules and their due instants."""

from typing import TYPE_CHECKING, NamedTuple

from duly.store.ops.op import Facts, Phase, always, if_found, op

if TYPE_CHECKING:  # Programs that only enqueue need no cron expressions.
    from duly.core.schedule_plans import PlannedSchedule


class Fired(NamedTuple):
    """The result of a FireSchedules."""

    looked_at: int
    """The number of schedules that were written."""
    runs: int
    """The number of runs that they created."""
    has_more: bool = False
    """True if more schedules may be due."""
    rewound: int = 0
    """The number of schedules that continue from now after a clock that was ahead."""

    def __bool__(self) -> bool:
        """Return whether there is something new to claim."""
        return self.runs > 0


@op(Facts(Phase.OPERATE, "operate", if_found))
class FireSchedules(NamedTuple):
    """Write the plans of those schedules that have not changed since they were read."""

    planned: "tuple[PlannedSchedule, ...]"
    ahead: tuple[str, ...] = ()
    """Schedules that fired by a clock that was ahead. Their cursors are set back first."""

    def answer(self) -> Fired:
        """Return the type of the answer."""
        raise NotImplementedError


class PutScheduleResult(NamedTuple):
    """The result of a PutSchedule."""

    what: str
    """created, changed, unchanged, kept or refused."""
    source: str
    """The source of the schedule that is stored."""
    place: str


class ScheduleBehind:
    """The answer if a schedule has missed more instants than one op accounts for.

    Some of them are accounted for. The caller must repeat the op.
    """


@op(Facts(Phase.OPERATE, "operate", always))
class PutSchedule(NamedTuple):
    """Add a schedule, or change the schedule with that name."""

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
    """The treatment of an existing schedule: "replace", "keep" or "error"."""

    def answer(self) -> PutScheduleResult | ScheduleBehind:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate", always))
class SetScheduleState(NamedTuple):
    """Pause, resume ("active") or remove a schedule.

    The answer is its state before, or None if there is no such schedule. A schedule that has ended
    stays as it is, unless it is removed.
    """

    name: str
    state: str
    actor: str
    reason: str = ""

    def answer(self) -> str | ScheduleBehind | None:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate", always))
class RunSchedule(NamedTuple):
    """Fire a schedule now, in addition to its due instants.

    The answer is the id of the run, or None if there is no such schedule.
    """

    name: str
    actor: str
    reason: str = ""

    def answer(self) -> str | None:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate", always))
class BackfillSchedule(NamedTuple):
    """Run these instants of a schedule, except those that have run or are still to come.

    The answer is the ids of the runs, or None if there is no such schedule.
    """

    name: str
    instants: tuple[int, ...]
    actor: str
    reason: str = ""

    def answer(self) -> list[str] | ScheduleBehind | None:
        """Return the type of the answer."""
        raise NotImplementedError

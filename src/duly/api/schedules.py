"""`app.schedules`: schedules and the outcomes of their due instants."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Unpack

from duly.actor import resolve_actor
from duly.api.schedule_options import ScheduleOptions
from duly.api.schedule_views import FiringView, ScheduleView, firing_view, module_of, schedule_view
from duly.app_protocol import AppProtocol
from duly.core.amounts import instant, microseconds
from duly.core.cron import Cron, SecondsField
from duly.core.instants import moment
from duly.core.key import check_name, check_queue
from duly.core.record import ScheduleRecord
from duly.core.schedule import (
    UNANCHORED,
    DateTrigger,
    IntervalTrigger,
    Misfire,
    Overlap,
    Rules,
    Trigger,
    check_interval,
    check_jitter,
    instants,
    read_rules,
    read_trigger,
    rules_text,
    trigger_text,
)
from duly.errors import BadSchedule, ScheduleEnded, ScheduleExists, ScheduleNotFound
from duly.limits import CATCH_UP, LATEST_YEAR, PAGE, PAGE_DEFAULT
from duly.run import Run, check_reason
from duly.store.ops.op import A, Op
from duly.store.ops.schedules import (
    BackfillSchedule,
    PutSchedule,
    PutScheduleResult,
    RunSchedule,
    ScheduleBehind,
    SetScheduleState,
)
from duly.store.reads import ScheduleFilter
from duly.task import Task

_FOREVER = 2**62
_LONGEST_LIST = 1_000
_LATEST = int(datetime(LATEST_YEAR, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


class Schedules:
    """Cron, interval and one-time schedules."""

    def __init__(self, host: AppProtocol) -> None:
        self._app = host
        self._defined: dict[str, PutSchedule] = {}

    # -- changing --

    def add(
        self,
        name: str,
        task: Task[..., Any],
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        at: datetime | None = None,
        tz: str = "UTC",
        seconds_field: SecondsField | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        on_duplicate: str = "replace",
        actor: str | None = None,
        **rules: Unpack[ScheduleOptions],
    ) -> ScheduleView:
        """Add a schedule at run time, or change the one of that name.

        Pass exactly one of `cron`, `every` and `at`. A cron expression of six fields needs
        `seconds_field`: "first", or "last" as in croniter. `on_duplicate` applies if a schedule of
        that name exists and has not ended: "replace" it, "keep" it, or raise an "error".
        """
        if not isinstance(task, Task):
            raise BadSchedule(f"a schedule fires a task, made with @app.task, not {task!r}")
        if on_duplicate not in {"replace", "keep", "error"}:
            raise BadSchedule(
                f'on_duplicate must be "replace", "keep" or "error", not {on_duplicate!r}'
            )
        op = _put(
            name,
            task,
            trigger_of(cron=cron, every=every, at=at, tz=tz, seconds_field=seconds_field),
            arguments=task.definition.codec.encode(tuple(args), kwargs or {}),
            source="runtime",
            place=resolve_actor(actor),
            **rules,
        )._replace(on_duplicate=on_duplicate)
        (put,) = self._apply([op])
        _check(op, put)
        return self.get(name)

    def define(
        self,
        name: str,
        task: Task[..., Any],
        trigger: Trigger,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        **rules: Unpack[ScheduleOptions],
    ) -> None:
        """Define a schedule in code. Workers write it to the store when they start."""
        definition = task.definition
        arguments = definition.codec.encode(tuple(args), kwargs or {})
        op = _put(
            name, task, trigger, arguments=arguments, source="code", place=definition.place, **rules
        )
        known = self._defined.get(name)
        # A module imported twice repeats its definition. Two schedules of one function differ.
        if known is not None and (known.place, known.trigger) != (op.place, op.trigger):
            raise ScheduleExists(name, f"in code, {op.place}", f"in code, {known.place}")
        self._defined[name] = op

    def sync(self) -> None:
        """Update the store to match the code: add, change, and mark missing ones as removed."""
        ops = list(self._defined.values())
        for op, put in zip(ops, self._apply(ops), strict=True):
            _check(op, put)
        # Other applications may share the store. Only schedules of this one's modules are removed.
        names = set(self._app.registry.names())
        modules = {module_of(name) for name in names}
        missing = [
            schedule
            for schedule in self._records(ScheduleFilter(source="code", limit=_LONGEST_LIST))
            if not self.is_defined(schedule.name) and module_of(schedule.task) in modules
        ]
        others = self._tasks_of_others(names) if missing else set()
        gone = [schedule.name for schedule in missing if schedule.task not in others]
        if gone:
            how = ("removed", resolve_actor(None), "gone from the code")
            self._apply([SetScheduleState(name, *how) for name in gone])

    def _tasks_of_others(self, own: set[str]) -> set[str]:
        """Return the tasks that only workers of other applications have registered.

        Modules of two applications may have one name. But an earlier version of this application
        shares tasks with it, and another application does not.
        """
        registered = [set(json.loads(each.tasks)) for each in self._app.store.list_workers()]
        ours = own.union(*(tasks for tasks in registered if tasks & own))
        return set().union(*registered) - ours

    def is_defined(self, name: str) -> bool:
        """Return whether code that this process has imported defines a schedule of that name."""
        return name in self._defined

    def pause(self, name: str, *, actor: str | None = None, reason: str = "") -> None:
        """Skip due instants until the schedule is resumed, even after deploys and restarts."""
        self._set(name, "paused", actor, reason)

    def resume(self, name: str, *, actor: str | None = None, reason: str = "") -> None:
        """Resume a paused schedule."""
        self._set(name, "active", actor, reason)

    def remove(self, name: str, *, actor: str | None = None, reason: str = "") -> None:
        """Stop a schedule for good. The record of its firings is kept."""
        self._set(name, "removed", actor, reason)

    def run_now(self, name: str, *, actor: str | None = None, reason: str = "") -> Run[Any]:
        """Fire once now, in addition to all due instants and whatever the schedule's state."""
        op = RunSchedule(_named(name), resolve_actor(actor), check_reason(reason))
        run_id = self._app.store.do(op)
        if run_id is None:
            raise ScheduleNotFound(name)
        return Run(self._app, run_id)

    def backfill(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        actor: str | None = None,
        reason: str = "",
    ) -> list[Run[Any]]:
        """Run instants from `start` to before `end` that have not run, including skipped ones."""
        schedule = self._record(name)
        begin, until = _instant("start", start), _instant("end", end)
        due = instants(read_trigger(schedule.trigger), Rules(), begin - 1)
        wanted = tuple(islice(takewhile(lambda found: found < until, due), CATCH_UP + 1))
        if len(wanted) > CATCH_UP:
            raise BadSchedule(
                f"there are more than {CATCH_UP} instants of {name!r} in that time; backfill "
                "shorter periods"
            )
        op = BackfillSchedule(name, wanted, resolve_actor(actor), check_reason(reason))
        (run_ids,) = self._apply([op])
        if run_ids is None:
            raise ScheduleNotFound(name)
        return [Run(self._app, run_id) for run_id in run_ids]

    def _set(self, name: str, state: str, actor: str | None, reason: str) -> None:
        op = SetScheduleState(_named(name), state, resolve_actor(actor), check_reason(reason))
        (before,) = self._apply([op])
        if before is None:
            raise ScheduleNotFound(name)
        if before == "ended" and state != "removed":
            raise ScheduleEnded(name)

    def _apply(self, ops: "Sequence[Op[A | ScheduleBehind]]") -> list[A]:
        """Write ops, and repeat those whose schedules have more instants to catch up with."""
        found: dict[int, A] = {}
        while left := [place for place in range(len(ops)) if place not in found]:
            answers = self._app.store.apply([ops[place] for place in left])
            pairs = zip(left, answers, strict=True)
            found |= {at: each for at, each in pairs if not isinstance(each, ScheduleBehind)}
        return [found[place] for place in range(len(ops))]

    # -- reading --

    def page(self, after: str = "", limit: int = PAGE_DEFAULT) -> Sequence[ScheduleView]:
        """Return up to `limit` schedules, ordered by name, after the name `after`."""
        tasks = self._registered()
        which = ScheduleFilter(after=after, limit=limit)
        return [schedule_view(row, tasks) for row in self._app.store.list_schedules(which)]

    def list(self, *, removed: bool = False) -> Sequence[ScheduleView]:
        """Return the schedules by name."""
        tasks = self._registered()
        found = self._records(ScheduleFilter(removed=removed, limit=_LONGEST_LIST))
        return [schedule_view(schedule, tasks) for schedule in found]

    def get(self, name: str) -> ScheduleView:
        """Return a schedule, including removed ones."""
        return schedule_view(self._record(name), self._registered())

    def next(self, name: str, count: int = 5) -> Sequence[datetime]:
        """Return the next due times, in the schedule's time zone."""
        schedule = self._record(name)
        if schedule.next_at is None or schedule.state == "removed":
            return []
        trigger, rules = read_trigger(schedule.trigger), read_rules(schedule.rules)
        due = instants(trigger, rules, schedule.next_at - 1)
        tz = trigger.tz if isinstance(trigger, Cron) else UTC
        return [moment(found).astimezone(tz) for found in islice(due, count)]

    def firings(
        self, name: str, *, limit: int = PAGE, before: datetime | None = None
    ) -> Sequence[FiringView]:
        """Return the outcomes of its instants, newest first."""
        if not 1 <= limit <= _LONGEST_LIST:
            raise BadSchedule(f"limit must be from 1 to {_LONGEST_LIST}, not {limit}")
        until = _FOREVER if before is None else _instant("before", before)
        return [*map(firing_view, self._app.store.list_firings(_named(name), until, limit))]

    def _record(self, name: str) -> ScheduleRecord:
        found = self._app.store.list_schedules(ScheduleFilter(_named(name), removed=True))
        if not found:
            raise ScheduleNotFound(name)
        return found[0]

    def _records(self, which: ScheduleFilter) -> Iterator[ScheduleRecord]:
        while page := self._app.store.list_schedules(which):
            yield from page
            which = which._replace(after=page[-1].name)

    def _registered(self) -> frozenset[str]:
        workers = self._app.store.list_workers()
        known = (json.loads(worker.tasks) for worker in workers if worker.state == "live")
        return frozenset(name for names in known for name in names)


def trigger_of(
    *,
    cron: str | None = None,
    every: float | timedelta | None = None,
    at: datetime | None = None,
    tz: str = "UTC",
    seconds_field: SecondsField | None = None,
) -> Trigger:
    """Return the requested trigger, or raise BadSchedule."""
    if sum(given is not None for given in (cron, every, at)) != 1:
        raise BadSchedule("pass exactly one of cron=, every= and at=")
    if cron is not None:
        return Cron(cron, tz, seconds_field=seconds_field)
    if seconds_field is not None:
        raise BadSchedule("seconds_field= needs cron=")
    if every is not None:
        seconds = every.total_seconds() if isinstance(every, timedelta) else every
        return IntervalTrigger(check_interval(seconds), UNANCHORED)
    assert at is not None  # noqa: S101 - for the type checker
    return DateTrigger(_instant("at", at))


def _put(
    name: str,
    task: Task[..., Any],
    trigger: Trigger,
    *,
    arguments: str,
    source: str,
    place: str,
    misfire: Misfire = "latest",
    grace: float | timedelta | None = None,
    max_catch_up: int = 100,
    overlap: Overlap | None = None,
    jitter: float | timedelta = 0,
    start: datetime | None = None,
    end: datetime | None = None,
    pause_after: int | None = None,
) -> PutSchedule:
    if overlap is None:
        # A one-time schedule cannot overlap itself. Instants that are caught up must all run.
        happens_once = isinstance(trigger, DateTrigger)
        overlap = "allow" if happens_once else "queue" if misfire == "all" else "skip"
    rules = Rules(
        misfire,
        None if grace is None else microseconds("grace", grace),
        max_catch_up,
        overlap,
        microseconds("jitter", jitter),
        None if start is None else _instant("start", start),
        None if end is None else _instant("end", end),
        pause_after,
    )
    check_jitter(trigger, rules.jitter)
    definition = task.definition
    return PutSchedule(
        _named(name),
        source,
        place,
        definition.name,
        check_queue(definition.queue),
        definition.lane_of(*definition.codec.decode(arguments)),
        definition.priority,
        arguments,
        trigger_text(trigger),
        rules_text(rules),
        None if definition.expires is None else microseconds("expires", definition.expires),
    )


def _instant(what: str, value: datetime) -> int:
    """Return an instant within the years that all calendars support."""
    try:
        found = instant(what, value)
    except OverflowError:
        found = -1
    if not 0 <= found < _LATEST:
        raise BadSchedule(f"{what} must be between the years 1970 and {LATEST_YEAR}, not {value}")
    return found


def _named(name: str) -> str:
    return check_name("schedule", name)


def _check(op: PutSchedule, put: PutScheduleResult) -> None:
    if put.what == "refused":
        known = "in code, " if put.source == "code" else "at run time by "
        asked = "in code, " if op.source == "code" else "at run time by "
        raise ScheduleExists(op.name, asked + op.place, known + put.place)

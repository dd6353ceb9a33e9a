"""Tasks that run repeatedly."""

from typing import Any, NamedTuple

from duly import Duly, Task
from duly.api.schedules import trigger_of
from duly.clock import MICROSECONDS
from duly.core.schedule import IntervalTrigger, Trigger, trigger_text
from duly.errors import BadOption
from duly.store.ops.runs import Key
from duly.task import Call, accept

_STARTUP_KEY = "duly.startup"
_CRON_SECONDS = 60.0


class _StartupTask(NamedTuple):
    task: Task[..., Any]
    apart: float
    """The seconds within which the starts of several processes count as one."""


class PeriodicTasks:
    """The schedules of one manager."""

    def __init__(self, duly: Duly) -> None:
        self._duly = duly
        self._on_startup: list[_StartupTask] = []
        self._triggers: dict[str, list[str]] = {}
        """The stored text of the triggers, by task."""
        self.names: set[str] = set()
        """The names of tasks that have schedules."""

    @staticmethod
    def trigger(*, every: float | None, cron: str | None, timezone: str) -> Trigger:
        """Return the trigger for these options. Raise BadOption if they are invalid."""
        if (every is None) == (cron is None):
            raise BadOption("pass exactly one of every= (seconds) and cron=")
        if cron is None:
            return trigger_of(every=every)
        # With six fields, the last is seconds, as in croniter.
        return trigger_of(cron=cron, tz=timezone, seconds_field="last")

    def add(self, task: Task[..., Any], trigger: Trigger, *, run_on_startup: bool) -> None:
        """Run a task by a trigger: one run per instant, even while an earlier one is running."""
        triggers = self._triggers.setdefault(task.name, [])
        text = trigger_text(trigger)
        is_new = text not in triggers  # Otherwise the function's module was imported twice.
        if is_new:
            triggers.append(text)
        place = triggers.index(text) + 1
        name = task.name if place == 1 else f"{task.name}#{place}"
        self._duly.schedules.define(name, task, trigger, overlap="allow")
        self.names.add(task.name)
        if run_on_startup and is_new:
            seconds = _CRON_SECONDS
            if isinstance(trigger, IntervalTrigger):
                seconds = trigger.interval / MICROSECONDS
            self._on_startup.append(_StartupTask(task, seconds))

    def run_on_startup(self) -> None:
        """Enqueue the startup tasks, once for all processes that start together."""
        for task, apart in self._on_startup:
            key = Key(_STARTUP_KEY, "", int(apart * MICROSECONDS), active_only=False)
            accept(self._duly, [Call[Any](task.call().op._replace(key=key))])

"""Writes events as log lines of the logger `duly`."""

import logging
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import islice
from typing import Protocol, assert_never

from duly.clock import MICROSECONDS
from duly.core.escape import clean
from duly.core.instants import iso
from duly.core.states import State
from duly.core.time_text import duration, shown_instant
from duly.core.verdict import Finish, Requeue
from duly.events import (
    STOPPED,
    STOPPED_BY_SECOND_SIGNAL,
    ClaimsHandedBack,
    EngineFailed,
    LinesDropped,
    LogEntry,
    LoggedAttempt,
    ResultDropped,
    RunOverdue,
    RunsUndelivered,
    StoreFailed,
    StoreRecovered,
    SupervisorReady,
    SupervisorStopping,
    UnknownTaskDelivered,
    WorkerEnded,
    WorkerEvent,
    WorkerGaveUp,
    WorkerStalled,
    WorkerStarted,
    WorkerStopping,
)
from duly.limits import PAGE

logger = logging.getLogger("duly")

_REQUESTED = frozenset({"snoozed", "suspended"})
"""Outcomes of attempts whose bodies asked to continue later."""
_SUCCEEDED, _CANCELLED = State.SUCCEEDED, State.CANCELLED
_PLANNED_STOPS = frozenset({STOPPED, STOPPED_BY_SECOND_SIGNAL})
_NAMED = 5
"""The maximum number of runs that a line names."""
_TASKS_NAMED = 20


def is_logged(event: LoggedAttempt, failures: int) -> bool:
    """Return whether the end of an attempt has a line at the present log level."""
    return logger.isEnabledFor(_level_of(event, failures))


def log_event(event: LogEntry, at: float | None = None, *, failures: int = logging.ERROR) -> None:
    """Write one line for one event. `at` is its wall time in seconds; without it, that is now.

    `failures` is the level for runs that failed for good. It is lower if another logger logs them
    as errors, with their tracebacks.
    """
    write = partial(_write, at)
    match event:
        case LoggedAttempt():
            _log_attempt(event, write, failures)
        case ResultDropped(run_id, claim_number):
            about = {"run_id": run_id, "outcome": "dropped"}
            text = "run %s: claim %s was lost, so its result was dropped"
            write(logging.WARNING, text, run_id, claim_number, about=about)
        case (
            WorkerStarted()
            | SupervisorReady()
            | SupervisorStopping()
            | WorkerStopping()
            | WorkerEnded()
            | WorkerGaveUp()
            | WorkerStalled()
        ):
            _log_worker_event(event, write)
        case StoreFailed(what, error, pause):
            text = "%s failed, retrying in %.1f s: %s"
            write(logging.WARNING, text, what, pause, clean(error))
        case StoreRecovered(what):
            write(logging.INFO, "%s works again", what)
        case EngineFailed(what, error, traceback):
            text = "%s met an unexpected error and continues: %s"
            write(logging.ERROR, text, what, clean(error), traceback=traceback)
        case ClaimsHandedBack(run_ids, reason):
            write(logging.INFO, "%s claims returned to the queue: %s", len(run_ids), reason)
        case RunOverdue(run_id, task):
            about = {"run_id": run_id, "task": task, "outcome": "overdue"}
            text = "run %s (%s) is past its timeout and still running"
            write(logging.WARNING, text, run_id, task, about=about)
        case UnknownTaskDelivered(run_id, task):
            text = (
                "run %s was delivered to this process, which does not know its task %s, and will "
                "be delivered again: import the module that defines the task in this worker, or "
                "keep the old name of a renamed task with @app.task(aliases=(…,))"
            )
            write(logging.WARNING, text, run_id, task, about={"run_id": run_id, "task": task})
        case RunsUndelivered(run_ids):
            text = (
                "%s runs were sent to their carrier as often as allowed and never started; they "
                "are dead letters now: %s"
            )
            write(logging.ERROR, text, len(run_ids), ", ".join(run_ids[:_NAMED]))
        case LinesDropped(lines):
            text = "%s lines of finished runs were dropped: the log was too slow for them"
            write(logging.WARNING, text, lines)
        case _:
            assert_never(event)


class _Write(Protocol):
    def __call__(
        self,
        level: int,
        text: str,
        *values: object,
        about: Mapping[str, object] | None = None,
        traceback: str | None = None,
    ) -> None: ...


def _write(
    at: float | None,
    level: int,
    text: str,
    *values: object,
    about: Mapping[str, object] | None = None,
    traceback: str | None = None,
) -> None:
    """Write a line with the time of its event."""
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(
        logger.name, level, *_PLACE, text, values, None, log_event.__name__, about
    )
    if at is not None:
        record.created, record.msecs = at, at % 1 * 1_000
    # The exception is only known as text here; formatters show this as its traceback.
    record.exc_text = traceback
    logger.handle(record)


_PLACE = (__file__, log_event.__code__.co_firstlineno)


def _log_worker_event(event: WorkerEvent, write: _Write) -> None:
    match event:
        case WorkerStarted(worker_id, store):
            about = {"worker_id": worker_id}
            write(logging.INFO, "worker %s started on %s", worker_id, clean(store), about=about)
        case SupervisorReady():
            _log_ready(event, write)
        case SupervisorStopping(reason, running, grace):
            tasks = _count(running, "running task")
            again = "Ctrl-C" if reason == "Ctrl-C" else "signal"
            waits = f"; waiting up to {grace:g} s for {tasks}; a second {again} kills running tasks"
            write(logging.INFO, "stopping: %s%s", reason, waits if running else "")
        case WorkerStopping(worker_id, running, grace):
            text = "worker %s waits up to %g s for %s"
            names = _list([f"{task} {run_id}" for task, run_id in running], _NAMED)
            about = {"worker_id": worker_id}
            write(logging.INFO, text, worker_id, grace, names, about=about)
        case WorkerEnded(worker_id, reason, run_ids):
            level = logging.INFO if reason in _PLANNED_STOPS else logging.WARNING
            about = {"worker_id": worker_id}
            write(level, "worker %s: %s%s", worker_id, clean(reason), _left(run_ids), about=about)
        case WorkerGaveUp(worker_id, lease, error):
            text = (
                "worker %s stops: for %.0f s its heartbeats succeeded and every other write "
                "failed: %s"
            )
            about = {"worker_id": worker_id}
            write(logging.ERROR, text, worker_id, lease, clean(error), about=about)
        case WorkerStalled(worker_id, thread, seconds):
            text = (
                "worker %s stops: its thread %s has hung for %.0f s, and the worker can make no "
                "progress without it"
            )
            about = {"worker_id": worker_id}
            write(logging.ERROR, text, worker_id, thread, seconds, about=about)
        case _:
            assert_never(event)


@cache
def log_notice(notice: str) -> None:
    """Warn once per process about a risk of a database that the process relies on."""
    logger.warning("%s", clean(notice))


def log_start(text: str) -> None:
    """Log what a program that starts workers is about to do."""
    logger.info("%s", clean(text))


def log_dashboard_link(link: str) -> None:
    """Write the link that signs a browser in to a dashboard without auth=."""
    # A warning, because Python shows nothing below that if logging is not set up.
    logger.warning("the dashboard has no auth=; sign in with this link: %s", clean(link))


def log_duplicate(name: str, what: str) -> None:
    """Log how a one-time task was handled whose name another schedule has."""
    logger.warning("schedule %r exists already: %s", clean(name), what)


def log_cut_over(source: str, moved: int, left: Mapping[str, str]) -> None:
    """Log how many rows of another system were moved to duly, and why others were not."""
    if moved:
        logger.info("%s rows of %s were moved to duly", moved, source)
    for name, reason in islice(left.items(), _NAMED):
        logger.warning("%s: %s stays in its table: %s", source, clean(name), clean(reason))
    if len(left) > _NAMED:
        logger.warning("%s: %s more rows stay in their tables", source, len(left) - _NAMED)


def log_unclaimed(run_id: str, task: str, reason: str) -> None:
    """Log why no worker has claimed a run, for the caller that waits for it."""
    about = {"run_id": run_id, "task": task}
    logger.warning("run %s (%s) has not started yet: %s", run_id, task, clean(reason), extra=about)


def log_lost_dead_letter(task: str, draft: str, error: Exception, *, has_secrets: bool) -> None:
    """Log a dead letter that could not be written. The log is its only record."""
    logger.critical(
        "the dead letter of a call of %s could not be written: %s; write it yourself, with "
        "DeadLetterDraft from duly.guard.dead_letters%s: guard.letters.put(%s)",
        task,
        clean(str(error)),
        "; replace *** with the arguments that are not logged because they are secret"
        if has_secrets
        else "",
        clean(draft),
    )


def _log_ready(event: SupervisorReady, write: _Write) -> None:
    """Write what a supervisor's workers run, one line per subject."""
    if event.tasks:
        about: dict[str, object] = {"tasks": event.tasks[:_TASKS_NAMED]}
        names = _list(event.tasks, _TASKS_NAMED)
        write(logging.INFO, "%s: %s", _count(len(event.tasks), "task"), names, about=about)
    else:
        text = (
            "no task is registered: import the modules that define your tasks in the module of %s, "
            "or name them in Duly(include=[…]) or with `duly worker -I`"
        )
        write(logging.WARNING, text, clean(event.app))
    about = {
        "queues": event.queues,
        "processes": event.processes,
        "concurrency": event.concurrency,
        "async_limit": event.async_limit,
    }
    write(
        logging.INFO,
        "queues: %s; concurrency: %s, each with %s and %s",
        clean(event.queues),
        _count(event.processes, "process"),
        _count(event.concurrency, "thread"),
        _count(event.async_limit, "coroutine"),
        about=about,
    )
    next_fires = {each.name: iso(each.next_at) for each in event.schedules}
    shown = [f"{each.name} at {shown_instant(each.next_at, event.now)}" for each in event.schedules]
    write(
        logging.INFO,
        "%s%s",
        f"{PAGE} or more schedules" if len(shown) == PAGE else _count(len(shown), "schedule"),
        f", next: {_list(shown, _NAMED)}" if shown else "",
        about={"schedules": next_fires},
    )


def _list(texts: Sequence[str], most: int) -> str:
    more = f", and {len(texts) - most} more" if len(texts) > most else ""
    return clean(", ".join(texts[:most]) + more)


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def _left(run_ids: Sequence[str]) -> str:
    """Return what happened to the runs that a worker had not finished."""
    if not run_ids:
        return ""
    runs = "1 run" if len(run_ids) == 1 else f"{len(run_ids)} runs"
    more = ", …" if len(run_ids) > _NAMED else ""
    named = ", ".join(run_ids[:_NAMED]) + more
    return f"; unfinished: {runs}, now queued again or ended as their tasks define: {named}"


def _log_attempt(event: LoggedAttempt, write: _Write, failures: int) -> None:
    level = _level_of(event, failures)
    waited, verdict = event.waited, event.verdict
    is_planned = type(verdict) is Requeue and verdict.planned
    about = {
        "run_id": event.run_id,
        "task": event.task,
        "queue": event.queue,
        "attempt": event.attempt,
        "outcome": event.outcome,
        "state": verdict.state.value if isinstance(verdict, Finish) else "queued",
        "error": event.error,
        "waited_seconds": None if waited is None else waited / MICROSECONDS,
        "duration_seconds": event.elapsed / MICROSECONDS,
    }
    write(
        level,
        "%s %s %s, attempt %s%s, took %s%s",
        event.task,
        _shown_id(event),
        _end_of(event),
        event.attempt,
        "" if waited is None else f", waited {duration(waited)}",
        duration(event.elapsed),
        _sequel_of(event),
        about=about,
        traceback=event.traceback if level >= logging.WARNING and not is_planned else None,
    )


def _level_of(event: LoggedAttempt, failures: int) -> int:
    verdict = event.verdict
    if type(verdict) is Finish:
        # Two comparisons: this is called for every run, and a lookup of an Enum in a set is slow.
        is_planned = verdict.state is _SUCCEEDED or verdict.state is _CANCELLED
        return logging.INFO if is_planned else failures
    return logging.INFO if event.outcome in _REQUESTED else logging.WARNING


def _shown_id(event: LoggedAttempt) -> str:
    """Return the id of the run. It is shortened if the run succeeded: such lines are many."""
    run_id, verdict = event.run_id, event.verdict
    if type(verdict) is Finish and verdict.state is _SUCCEEDED:
        return f"{run_id[:8]}…{run_id[-4:]}"
    return run_id


def _end_of(event: LoggedAttempt) -> str:
    """Return how an attempt ended: by the state of its run, if that has ended with it."""
    verdict = event.verdict
    if not isinstance(verdict, Finish):
        return event.outcome
    return f"{verdict.state.value} ({verdict.cause})" if verdict.cause else verdict.state.value


def _sequel_of(event: LoggedAttempt) -> str:
    """Return why an attempt failed, and what follows."""
    verdict = event.verdict
    if isinstance(verdict, Finish):
        follows = ""
    elif verdict.awaits is None:
        follows = f"; again in {duration(verdict.after * MICROSECONDS)}"
    else:
        follows = f"; waits in step {verdict.awaits}"
    why = f": {clean(event.error)}" if event.error else ""
    return follows + why

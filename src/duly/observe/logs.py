"""Events as log lines, under the logger `duly`."""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from typing import assert_never

from duly.core.escape import clean
from duly.core.states import State
from duly.core.verdict import Finish
from duly.events import (
    AttemptEnded,
    ClaimsHandedBack,
    EngineFailed,
    Event,
    ResultDropped,
    RunOverdue,
    RunsUndelivered,
    StoreFailed,
    StoreRecovered,
    UnknownTaskDelivered,
    WorkerEnded,
    WorkerGaveUp,
    WorkerStalled,
    WorkerStarted,
)

logger = logging.getLogger("duly")

_REQUESTED = frozenset({"snoozed", "suspended"})
"""Ends of attempts that go on later because their bodies want it so."""
_NAMED = 5
"""How many runs a line names at the most."""


def log_event(event: Event, *, failures: int = logging.ERROR) -> None:
    """Write one line for one event.

    `failures` is the level of runs that failed for good; it is lower where another logger logs them
    as errors, with their tracebacks.
    """
    match event:
        case AttemptEnded():
            _log_attempt(event, failures)
        case ResultDropped(run_id, claim_number):
            about = {"run_id": run_id, "outcome": "dropped"}
            text = "run %s: claim %s was lost, so its result was dropped"
            logger.warning(text, run_id, claim_number, extra=about)
        case WorkerStarted(worker_id, store):
            about = {"worker_id": worker_id}
            logger.info("worker %s started on %s", worker_id, clean(store), extra=about)
        case WorkerEnded(worker_id, reason, run_ids):
            level = logging.INFO if reason == "stopped" else logging.WARNING
            about = {"worker_id": worker_id}
            left = _left(run_ids)
            logger.log(level, "worker %s: %s%s", worker_id, clean(reason), left, extra=about)
        case WorkerGaveUp(worker_id, lease, error):
            logger.error(
                "worker %s stops: for %.0f s its heartbeats succeeded and every other write "
                "failed: %s",
                worker_id,
                lease,
                clean(error),
                extra={"worker_id": worker_id},
            )
        case WorkerStalled(worker_id, thread, seconds):
            logger.error(
                "worker %s stops: its thread %s has hung for %.0f s, and the worker can make no "
                "progress without it",
                worker_id,
                thread,
                seconds,
                extra={"worker_id": worker_id},
            )
        case StoreFailed(what, error, pause):
            logger.warning("%s failed, retrying in %.1f s: %s", what, pause, clean(error))
        case StoreRecovered(what):
            logger.info("%s works again", what)
        case EngineFailed(what, error):
            logger.error("%s met an unexpected error and continues: %s", what, clean(error))
        case ClaimsHandedBack(run_ids, reason):
            logger.info("%s claims returned to the queue: %s", len(run_ids), reason)
        case RunOverdue(run_id, task):
            about = {"run_id": run_id, "task": task, "outcome": "overdue"}
            text = "run %s (%s) is past its timeout and still running"
            logger.warning(text, run_id, task, extra=about)
        case UnknownTaskDelivered(run_id, task):
            logger.warning(
                "run %s was delivered to this process, which does not know its task %s, and will "
                "be delivered again: import the module that defines the task in this worker, or "
                "keep the old name of a renamed task with @app.task(aliases=(…,))",
                run_id,
                task,
                extra={"run_id": run_id, "task": task},
            )
        case RunsUndelivered(run_ids):
            logger.error(
                "%s runs were sent to their carrier as often as allowed and never started; they "
                "are dead letters now: %s",
                len(run_ids),
                ", ".join(run_ids[:_NAMED]),
            )
        case _:
            assert_never(event)


@cache
def log_notice(notice: str) -> None:
    """Say once in each process what people should know about a database that it relies on."""
    logger.warning("%s", clean(notice))


def log_start(text: str) -> None:
    """Say what a program that keeps workers is about to do."""
    logger.info("%s", clean(text))


def log_dashboard_link(link: str) -> None:
    """Write the link that signs a browser in to a dashboard without auth=."""
    # A warning, since Python shows nothing less where logging is not set up.
    logger.warning("the dashboard has no auth=; sign in with this link: %s", clean(link))


def log_duplicate(name: str, what: str) -> None:
    """Write what became of a one-time task whose name another schedule has."""
    logger.warning("schedule %r exists already: %s", clean(name), what)


def log_cut_over(source: str, moved: int, left: Mapping[str, str]) -> None:
    """Write how many rows of another system are duly's from now on, and why others are not."""
    if moved:
        logger.info("%s rows of %s were moved to duly", moved, source)
    for name, reason in islice(left.items(), _NAMED):
        logger.warning("%s: %s stays in its table: %s", source, clean(name), clean(reason))
    if len(left) > _NAMED:
        logger.warning("%s: %s more rows stay in their tables", source, len(left) - _NAMED)


def log_unclaimed(run_id: str, task: str, reason: str) -> None:
    """Say to who waits for a run why nobody has claimed it."""
    about = {"run_id": run_id, "task": task}
    logger.warning("run %s (%s) has not started yet: %s", run_id, task, clean(reason), extra=about)


def log_lost_dead_letter(task: str, draft: str, error: Exception, *, has_secrets: bool) -> None:
    """Log a dead letter that could not be written: nobody else knows of it."""
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


def _left(run_ids: Sequence[str]) -> str:
    """Say what became of the runs that a worker had not finished."""
    if not run_ids:
        return ""
    runs = "1 run" if len(run_ids) == 1 else f"{len(run_ids)} runs"
    more = ", …" if len(run_ids) > _NAMED else ""
    named = ", ".join(run_ids[:_NAMED]) + more
    return f"; unfinished: {runs}, now queued again or ended as their tasks define: {named}"


def _log_attempt(event: AttemptEnded, failures: int) -> None:
    claim, verdict = event.claim, event.verdict
    if isinstance(verdict, Finish):
        level = logging.DEBUG if verdict.state == State.SUCCEEDED else failures
        if verdict.state == State.CANCELLED:
            level = logging.INFO
        follows = f"{verdict.state} ({verdict.cause})" if verdict.cause else str(verdict.state)
    else:
        level = logging.INFO if event.outcome in _REQUESTED else logging.WARNING
        follows = (
            f"again in {verdict.after:.1f} s"
            if verdict.awaits is None
            else f"waits in step {verdict.awaits}"
        )
    if logger.isEnabledFor(level):
        about = {
            "run_id": claim.run_id,
            "task": claim.task,
            "queue": claim.queue,
            "attempt": claim.attempt,
            "outcome": event.outcome,
            "state": str(verdict.state) if isinstance(verdict, Finish) else "queued",
            "error": event.error,
        }
        text = "run %s %s attempt %s %s after %.3f s: %s%s"
        values = (
            claim.run_id,
            claim.task,
            claim.attempt,
            event.outcome,
            event.elapsed / 1e6,
            follows,
            f"; {clean(event.error)}" if event.error else "",
        )
        place = (__file__, _log_attempt.__code__.co_firstlineno)
        record = logger.makeRecord(
            logger.name, level, *place, text, values, None, _log_attempt.__name__, about
        )
        if level == logging.ERROR:
            # The exception is only known as text here; formatters show this as its traceback.
            record.exc_text = event.traceback
        logger.handle(record)

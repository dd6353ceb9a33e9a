"""All errors a user of duly can meet.

    DulyError
    ├── BadArguments, PayloadError      also TypeError: the call itself is wrong
    ├── BadOption                       also ValueError: an option that cannot be kept
    │   └── BadSchedule, AppNotFound
    ├── AppBroken, DuplicateTask, TaskNotRegistered
    ├── KeyConflict, RunNotFound, RunNotFinal, RunNotInterrupted, StepNotResolved
    ├── ScheduleNotFound, ScheduleEnded, ScheduleExists
    ├── LockBusy, LockLost
    ├── RunFailed, RunInterrupted, RunCancelled     raised by `run.result()`
    ├── Busy, LetterNotFound            raised by the guard
    ├── ClaimLost, TransactionTooLong, TransactionEnded
    ├── LifespanNotStarted              raised inside web applications
    └── StoreError
        ├── StoreUnavailable
        │   └── WouldBlockItself, ReadTooSlow
        └── StoreReadOnly, StoreFull, StoreRefused, SchemaMismatch

`Snooze`, `RetryAfter` and `Discard` are not errors: a task raises them to say what should follow.
"""

from typing import Any


class DulyError(Exception):
    """The root of every error that duly raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Other engines pickle errors; most of ours are made of more than their message.
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(kind: type[DulyError], args: tuple[Any, ...], state: dict[str, Any]) -> DulyError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class BadArguments(DulyError, TypeError):
    """The arguments of a call do not fit the signature of its task."""


class PayloadError(DulyError, TypeError):
    """A value cannot be stored, or stored text cannot be read back."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}")
        self.argument = argument
        self.problem = problem


class StepNotKept(PayloadError):
    """What a step returned cannot be stored. It was carried out, if no transaction undid it."""

    def __init__(self, step: str, error: PayloadError, *, is_undone: bool = False) -> None:
        done = "was rolled back" if is_undone else "was executed"
        problem = f"{error}; the step {done} and is not retried automatically"
        super().__init__(f"the result of step {step!r}", problem)
        self.step = step


class BadOption(DulyError, ValueError):
    """An option of a task, a call or a command has a value that cannot be kept."""


class BadSchedule(BadOption):
    """A schedule cannot be kept: its expression, its zone, its policy or its name."""


class DuplicateTask(DulyError):
    """Two functions were registered under one task name."""

    def __init__(self, name: str, first: str, second: str) -> None:
        super().__init__(
            f"task {name!r} is defined twice: in {first} and in {second}; "
            f"give one of them another name with @app.task(name=…)"
        )
        self.name = name


class AppNotFound(BadOption):
    """The reference of an application leads to no application."""


class AppBroken(DulyError):
    """The module of an application raised while it was imported; its cause is what it raised."""


class TaskNotRegistered(DulyError):
    """A run or a command names a task this process does not know."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        hint = f"; known tasks: {', '.join(known)}" if known else ""
        super().__init__(
            f"task {name!r} is unknown here{hint}; import the module that defines it, or keep the "
            "old name of a renamed task with @app.task(aliases=(…,))"
        )
        self.name = name


class KeyConflict(DulyError):
    """A key was used before with other arguments."""

    def __init__(self, key: str, run_id: str | None = None) -> None:
        """Say whose it is: that run's, or else a call's that the guard knows."""
        whose = "a call with other arguments"
        reset = "call guard.reset(key) if that call no longer counts"
        if run_id is not None:
            whose = f"run {run_id}, which has other arguments"
            reset = "call app.reset_key(task, key) if the old run no longer counts"
        super().__init__(f"key {key!r} belongs to {whose}; use another key, or {reset}")
        self.key = key
        self.run_id = run_id


class QueueFull(DulyError):
    """As many runs wait in a queue as may; nothing of this call was accepted."""

    def __init__(self, queue: str, max_size: int) -> None:
        super().__init__(
            f"queue {queue!r} is full: it may hold {max_size:,} waiting runs, and this call would "
            "exceed that; try again later, start more workers, or raise the limit: duly queues "
            f"limit {queue} --max-size"
        )
        self.queue = queue
        self.max_size = max_size


class RunNotFound(DulyError, LookupError):
    """No run has this id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r}; it may have been pruned, or the id is wrong")
        self.run_id = run_id


class LetterNotFound(DulyError, LookupError):
    """No dead letter has this id."""

    def __init__(self, letter_id: str) -> None:
        super().__init__(
            f"there is no dead letter {letter_id!r}; it may have expired, or the id is wrong"
        )
        self.letter_id = letter_id


class ScheduleNotFound(DulyError, LookupError):
    """No schedule has this name."""

    def __init__(self, name: str) -> None:
        why = "see `duly schedules list`; schedules in code appear after a worker has started"
        super().__init__(f"there is no schedule {name!r}; {why}")
        self.name = name


class ScheduleEnded(DulyError):
    """A schedule that comes due no more was to be paused or resumed."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"schedule {name!r} has ended, so it cannot be paused or resumed; give it a new time "
            "to make it fire again"
        )
        self.name = name


class ScheduleExists(DulyError):
    """Two places define a schedule of one name."""

    def __init__(self, name: str, asked: str, known: str) -> None:
        super().__init__(
            f"schedule {name!r} cannot be defined {asked}: it is already defined {known}; give one "
            "of them another name"
        )
        self.name = name


class LockBusy(DulyError):
    """Somebody else holds a lock."""

    def __init__(self, name: str, holder: str, left: float | None) -> None:
        hint = (
            f"the lock expires in {left or 0:.1f} s unless its holder renews it; pass timeout=… to "
            "wait for it"
        )
        if left is None:
            hint = "release it before you acquire it again"
        super().__init__(f"lock {name!r} is held by {holder}; {hint}")
        self.name = name
        self.holder = holder


class LockLost(DulyError):
    """A lock could not be renewed in time: somebody else may hold it by now."""

    def __init__(self, name: str, fence: int) -> None:
        super().__init__(
            f"lock {name!r} (fence {fence}) was lost: it could not be renewed in time, and another "
            "process may hold it now"
        )
        self.name = name
        self.fence = fence


class RunNotFinal(DulyError):
    """An act that needs a final state met a run that still lives: that one, or one with its key."""

    def __init__(self, run_id: str, state: str, *, retried: str | None = None) -> None:
        other = (
            f"run {retried} cannot be retried while another run has its key: " if retried else ""
        )
        super().__init__(f"{other}run {run_id} is {state}; cancel it first, or wait for its end")
        self.run_id = run_id
        self.state = state


class RunNotInterrupted(DulyError):
    """An act that is about an interrupted step met a run that has none, or has not ended."""

    def __init__(self, run_id: str, state: str) -> None:
        super().__init__(f"run {run_id} is {state} and has no interrupted step to resolve")
        self.run_id = run_id
        self.state = state


class StepNotResolved(DulyError):
    """A run was to be retried that ended in a step which must not begin twice."""

    def __init__(self, run_id: str, steps: tuple[str, ...]) -> None:
        words = ("step " if len(steps) == 1 else "steps ") + ", ".join(map(repr, steps))
        super().__init__(
            f"run {run_id} was interrupted in {words}, which must not start twice, so a retry "
            "would stop there again; find out whether the step had its effect, then record the "
            f"answer with `duly runs resolve {run_id} --done` or `--rerun`"
        )
        self.run_id = run_id
        self.steps = steps


class RunFailed(DulyError):
    """The run ended as failed; its message is the last attempt's error."""

    def __init__(self, run_id: str, cause: str | None, error: str | None) -> None:
        super().__init__(f"run {run_id} failed ({cause}): {error}")
        self.run_id = run_id
        self.cause = cause
        self.error = error


class RunInterrupted(DulyError):
    """The run vanished mid-body and waits for a person (`on_crash="hold"`)."""

    def __init__(self, run_id: str, cause: str | None) -> None:
        super().__init__(
            f"run {run_id} was interrupted ({cause}) and may have had its effect; find out, then "
            "retry or discard it (duly dead list)"
        )
        self.run_id = run_id
        self.cause = cause


class RunCancelled(DulyError):
    """The run was cancelled, expired or discarded."""

    def __init__(self, run_id: str, cause: str | None) -> None:
        super().__init__(f"run {run_id} was cancelled ({cause})")
        self.run_id = run_id
        self.cause = cause


class Busy(DulyError):
    """Another caller is running the body of a key."""

    def __init__(self, key: str, holder: str, left: float) -> None:
        super().__init__(
            f"key {key!r} is held by {holder} (lease expires in {left:.1f} s). Retry later, or "
            "pass wait=… to wait for its result."
        )
        self.key = key
        self.holder = holder
        self.retry_after = left
        """Seconds after which a holder that has died can be replaced."""


class ClaimLost(DulyError):
    """This attempt no longer holds its run or its key: another has taken it over."""

    def __init__(self, what: str, claim_number: int) -> None:
        super().__init__(
            f"claim {claim_number} of {what} is lost: its lease expired and another process took "
            "it over; nothing more can be written for it"
        )
        self.claim_number = claim_number


class TransactionTooLong(DulyError):
    """A body's transaction was open for longer than allowed, and was rolled back."""


class TransactionEnded(DulyError):
    """A body's transaction has ended: with its run, or because the body ended it by itself."""


class LifespanNotStarted(DulyError):
    """A request came to an application before its lifespan began, or without any."""

    def __init__(self) -> None:
        super().__init__(
            "duly was not started with this application: make it with "
            "lifespan=duly_lifespan(app), on the outermost application if it is mounted in another "
            "(only that one's lifespan is entered); in tests enter it by `with TestClient(api) as "
            "client:`"
        )


class NoCurrentRun(DulyError):
    """`duly.current()` was called outside a running task, or a step begins behind its end."""


class WorkerTimeout(DulyError, TimeoutError):
    """A wait for a worker or a run took longer than the caller allowed."""


class StoreError(DulyError):
    """Something about the database."""


class StoreUnavailable(StoreError):
    """The database cannot be reached now; trying again later may help."""


class StoreBusy(StoreUnavailable):
    """The database answers, but another transaction holds what this needs."""


class WouldBlockItself(StoreBusy):
    """A caller asked for a write lock that it holds itself; nothing was written."""


class ReadTooSlow(StoreBusy):
    """A read took longer than whoever asked would wait, and was given up; nothing was changed."""

    def __init__(self) -> None:
        super().__init__(
            "the database took too long to answer; narrow the request with a shorter time range or "
            "more filters, or check what else keeps the database busy"
        )


class StoreReadOnly(StoreError):
    """The database cannot be written."""


class StoreFull(StoreError):
    """The disk or the database is full; nothing was written."""


class StoreRefused(StoreError):
    """The database, its address or its place cannot be used as it is."""


class SchemaMismatch(StoreError):
    """The tables are of another version than this code needs."""


OUTAGES = (StoreUnavailable, StoreFull, StoreReadOnly)
"""The same write may succeed once somebody has helped the store."""


class Snooze(Exception):
    """Raised by a task: run me again in `seconds`, without using an attempt."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"snoozed for {seconds} s")
        self.seconds = seconds


class RetryAfter(Exception):
    """Raised by a task: this attempt failed; use a retry, `seconds` from now."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason or f"asked to be retried after {seconds} s")
        self.seconds = seconds


class Discard(Exception):
    """Raised by a task: end this run as cancelled; there is nothing to do any more."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "discarded by its task")
        self.reason = reason


class CancelRequested(BaseException):
    """Raised by `current().check_cancelled()`; `except Exception` in a body lets it by."""


class AttemptTimedOut(BaseException):
    """Raised inside the body of a thread task whose timeout has passed."""

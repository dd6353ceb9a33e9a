"""All errors that duly raises to its users.

    DulyError
    ├── BadArguments, PayloadError      also TypeError: the call itself is wrong
    ├── BadOption                       also ValueError: an option that cannot be kept
    │   └── BadSchedule, AppNotFound
    ├── AppBroken, DuplicateTask, TaskNotRegistered
    ├── KeyConflict, RunNotFound, RunNotFinal, RunNotInterrupted, RunNotRescheduled, StepNotResolved
    ├── ScheduleNotFound, ScheduleEnded, ScheduleExists, LockBusy, LockLost
    ├── RunFailed, RunInterrupted, RunCancelled     raised by `run.result()`
    ├── Busy, LetterNotFound            raised by the guard
    ├── ClaimLost, StepNotAwaited, TransactionTooLong, TransactionEnded
    ├── LifespanNotStarted              raised inside web applications
    └── StoreError
        ├── StoreUnavailable
        │   └── WouldBlockItself, ReadTooSlow
        └── StoreReadOnly, StoreFull, StoreRefused, SchemaMismatch

`Snooze`, `RetryAfter` and `Discard` are not errors: a task raises them to choose what happens next.
"""


class DulyError(Exception):
    """The root of every error that duly raises."""

    def __reduce__(self) -> tuple[object, ...]:
        # Other engines pickle errors, and most of these have more attributes than their message.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class BadArguments(DulyError, TypeError):
    """The arguments of a call do not fit the signature of its task."""


class PayloadError(DulyError, TypeError):
    """A value cannot be stored, or stored text cannot be read back."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}")
        self.argument = argument
        self.problem = problem


class StepNotKept(PayloadError):
    """The result of a step cannot be stored. The step was executed, unless it was undone."""

    def __init__(self, step: str, error: PayloadError, *, is_undone: bool = False) -> None:
        done = "was rolled back" if is_undone else "was executed"
        problem = f"{error}; the step {done} and is not retried automatically"
        super().__init__(f"the result of step {step!r}", problem)
        self.step = step


class BadOption(DulyError, ValueError):
    """An option of a task, a call or a command has an invalid value."""


class BadSchedule(BadOption):
    """A schedule has an invalid expression, time zone, policy or name."""


class DuplicateTask(DulyError):
    """Two functions were registered under one task name."""

    def __init__(self, name: str, first: str, second: str) -> None:
        super().__init__(
            f"task {name!r} is defined twice: in {first} and in {second}; "
            f"give one of them another name with @app.task(name=…)"
        )
        self.name = name


class AppNotFound(BadOption):
    """The reference to an application does not lead to one."""


class AppBroken(DulyError):
    """The module of an application raised while it was imported. The cause is its exception."""


class TaskNotRegistered(DulyError):
    """A run or a command names a task that this process does not know."""

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
        """Describe the owner of the key: a run, or else a call that the guard has recorded."""
        whose = "a call with other arguments"
        reset = "call guard.reset(key) if that call no longer counts"
        if run_id is not None:
            whose = f"run {run_id}, which has other arguments"
            reset = "app.reset_key(task, key) if the old run no longer counts"
        super().__init__(f"key {key!r} belongs to {whose}; use another key, or {reset}")
        self.key = key
        self.run_id = run_id


class QueueFull(DulyError):
    """A queue has reached its maximum number of waiting runs. Nothing of this call was accepted."""

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
    """A schedule that has ended cannot be paused or resumed."""

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
    """Another caller holds the lock."""

    def __init__(self, name: str, holder: str, left: float | None) -> None:
        hint = f"it expires in {left or 0:.1f} s unless it is renewed; pass timeout=… to wait"
        if left is None:
            hint = "release it before you acquire it again"
        super().__init__(f"lock {name!r} is held by {holder}; {hint}")
        self.name = name
        self.holder = holder


class LockLost(DulyError):
    """A lock could not be renewed in time, so another caller may hold it now."""

    def __init__(self, name: str, fence: int) -> None:
        super().__init__(
            f"lock {name!r} (fence {fence}) was lost: it could not be renewed in time, and another "
            "process may hold it now"
        )
        self.name = name
        self.fence = fence


class RunNotFinal(DulyError):
    """An operator action needs a final state, but the run, or a run with its key, is still live."""

    def __init__(self, run_id: str, state: str, *, retried: str | None = None) -> None:
        other = (
            f"run {retried} cannot be retried while another run has its key: " if retried else ""
        )
        super().__init__(f"{other}run {run_id} is {state}; cancel it first, or wait for its end")
        self.run_id = run_id
        self.state = state


class RunNotInterrupted(DulyError):
    """The run has no interrupted step, or has not ended, so no step can be resolved."""

    def __init__(self, run_id: str, state: str) -> None:
        super().__init__(f"run {run_id} is {state} and has no interrupted step to resolve")
        self.run_id = run_id
        self.state = state


class RunNotRescheduled(DulyError):
    """The run is not waiting to start, or the time that was asked for does not suit it."""

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(f"run {run_id} cannot be rescheduled: {why}")
        self.run_id = run_id


class StepNotResolved(DulyError):
    """The run ended in a step that must not start twice, so it cannot be retried yet."""

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
    """The run failed. The message is the error of its last attempt."""

    def __init__(self, run_id: str, cause: str | None, error: str | None) -> None:
        super().__init__(f"run {run_id} failed ({cause}): {error}")
        self.run_id = run_id
        self.cause = cause
        self.error = error


class RunInterrupted(DulyError):
    """The run was lost during its task and waits for a person (`on_crash="hold"`)."""

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
    """Another caller is running the function for this key."""

    def __init__(self, key: str, holder: str, left: float) -> None:
        super().__init__(
            f"key {key!r} is held by {holder} (lease expires in {left:.1f} s). Retry later, or "
            "pass wait=… to wait for its result."
        )
        self.key = key
        self.holder = holder
        self.retry_after = left
        """Seconds until another caller can take the key over if its holder has died."""


class ClaimLost(DulyError):
    """This attempt no longer holds its run or its key, because another attempt took it over."""

    def __init__(self, what: str, claim_number: int) -> None:
        super().__init__(
            f"claim {claim_number} of {what} is lost: its lease expired and another process took "
            "it over; nothing more can be written for it"
        )
        self.claim_number = claim_number


class TransactionTooLong(DulyError):
    """A task's transaction was open for longer than allowed, and was rolled back."""


class TransactionEnded(DulyError):
    """A task's transaction has ended, with its run or because the task ended it."""


class LifespanNotStarted(DulyError):
    """A request reached an application before its lifespan began, or without one."""

    def __init__(self) -> None:
        super().__init__(
            "duly was not started with this application: make it with "
            "lifespan=duly_lifespan(app), on the outermost application if it is mounted in another "
            "(only that one's lifespan is entered); in tests enter it by `with TestClient(api) as "
            "client:`"
        )


class NoCurrentRun(DulyError):
    """`duly.current()` was called outside a running task, or a step began after its task ended."""


class StepNotAwaited(DulyError):
    """A task called `astep`, `asleep`, `await_for` or `agather` without `await`."""


class WorkerTimeout(DulyError, TimeoutError):
    """A wait for a worker or a run took longer than the caller allowed."""


class StoreError(DulyError):
    """An error of the database."""


class StoreUnavailable(StoreError):
    """The database cannot be reached now. Trying again later may help."""


class StoreBusy(StoreUnavailable):
    """The database answers, but another transaction holds a lock that this operation needs."""


class WouldBlockItself(StoreBusy):
    """A caller waits for a write lock that it holds itself. Nothing was written."""


class ReadTooSlow(StoreBusy):
    """A read took longer than its caller allows, and was stopped. Nothing was changed."""

    def __init__(self) -> None:
        super().__init__(
            "the database took too long to answer; narrow the request with a shorter time range or "
            "more filters, or check what else keeps the database busy"
        )


class StoreReadOnly(StoreError):
    """The database cannot be written."""


class StoreFull(StoreError):
    """The disk or the database is full. Nothing was written."""


class StoreRefused(StoreError):
    """The database, its address or its location cannot be used as it is."""


class SchemaMismatch(StoreError):
    """The tables have another version than this code needs."""


OUTAGES = (StoreUnavailable, StoreFull, StoreReadOnly)
"""After these errors, the same write may succeed once the store has been repaired."""


class Snooze(Exception):
    """Raised by a task: run it again in `seconds`, without using an attempt."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"snoozed for {seconds} s")
        self.seconds = seconds


class RetryAfter(Exception):
    """Raised by a task: this attempt failed. Use a retry, `seconds` from now."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason or f"asked to be retried after {seconds} s")
        self.seconds = seconds


class Discard(Exception):
    """Raised by a task: end this run as cancelled, because nothing is left to do."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "discarded by its task")
        self.reason = reason


class CancelRequested(BaseException):
    """Raised by `current().check_cancelled()`. `except Exception` in a task does not catch it."""


class AttemptTimedOut(BaseException):
    """Raised inside a thread task whose timeout has passed."""

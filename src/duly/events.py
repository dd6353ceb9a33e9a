"""Facts that are emitted after they are durable.

`duly.observe` turns them into logs, metrics and spans.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from duly.core.record import Claim, ScheduleRecord
from duly.core.verdict import Finish, Verdict


class AttemptEnded(NamedTuple):
    """The end of an attempt is recorded."""

    claim: Claim
    outcome: str
    verdict: Verdict
    elapsed: int
    error: str | None
    traceback: str | None = None
    """The traceback of the body's exception, with secrets masked."""
    waited: int | None = None
    """Microseconds from when the run was due until the attempt began. None if it did not begin."""

    def summary(self) -> "LoggedAttempt":
        """Return what the log line shows of this end."""
        claim, verdict = self.claim, self.verdict
        if isinstance(verdict, Finish):
            verdict = verdict._replace(result=None)
        return LoggedAttempt(
            run_id=claim.run_id,
            task=claim.task,
            queue=claim.queue,
            attempt=claim.attempt,
            outcome=self.outcome,
            verdict=verdict,
            elapsed=self.elapsed,
            waited=self.waited,
            error=self.error,
            traceback=self.traceback,
        )


class LoggedAttempt(NamedTuple):
    """The end of an attempt as its log line shows it.

    Many may wait for the log, so it has neither the arguments of the run nor its result.
    """

    run_id: str
    task: str
    queue: str
    attempt: int
    outcome: str
    verdict: Verdict
    elapsed: int
    waited: int | None
    error: str | None = None
    traceback: str | None = None


class ResultDropped(NamedTuple):
    """An attempt ended after its run was taken over. Its result is dropped."""

    run_id: str
    claim_number: int


class WorkerStarted(NamedTuple):
    """A worker is registered and claims runs."""

    worker_id: str
    store: str


class SupervisorReady(NamedTuple):
    """The first worker process of a supervisor is registered and claims runs."""

    app: str
    tasks: tuple[str, ...]
    """Those that the worker process has registered."""
    queues: str
    schedules: tuple[ScheduleRecord, ...]
    """Active schedules, the one that fires next first."""
    now: int
    """The time of the store when the schedules were read."""
    processes: int
    concurrency: int
    async_limit: int


class SupervisorStopping(NamedTuple):
    """A supervisor ends: it has told its worker processes to, or none is left."""

    reason: str
    running: int
    """How many tasks have begun and not ended."""
    grace: float
    """For how many seconds they may go on."""


class WorkerStopping(NamedTuple):
    """A worker claims nothing more and waits for the tasks that run."""

    worker_id: str
    running: tuple[tuple[str, str], ...]
    """Of each run its task and its id."""
    grace: float


STOPPED = "stopped"
STOPPED_BY_SECOND_SIGNAL = "stopped at once, by a second signal"


class WorkerEnded(NamedTuple):
    """A worker's process has ended or was declared dead. Its runs were settled."""

    worker_id: str
    reason: str
    run_ids: tuple[str, ...]


class WorkerGaveUp(NamedTuple):
    """For a whole lease, a worker's heartbeats reached the store but its other writes did not."""

    worker_id: str
    lease: float
    error: str


class WorkerStalled(NamedTuple):
    """An engine thread of a worker has hung. The worker stops, and a supervisor replaces it."""

    worker_id: str
    thread: str
    seconds: float


class StoreFailed(NamedTuple):
    """A store operation failed and will be tried again."""

    what: str
    error: str
    pause: float


class StoreRecovered(NamedTuple):
    """The store answers again."""

    what: str


class EngineFailed(NamedTuple):
    """A part of the engine met an unexpected error. It continues after a pause."""

    what: str
    error: str
    traceback: str | None = None


class ClaimsHandedBack(NamedTuple):
    """Claims that this worker never ran were returned to the queue."""

    run_ids: tuple[str, ...]
    reason: str


class RunOverdue(NamedTuple):
    """A body exceeds its timeout and cannot be ended from inside its process."""

    run_id: str
    task: str


class UnknownTaskDelivered(NamedTuple):
    """Another engine delivered a run whose task this process does not know."""

    run_id: str
    task: str


class RunsUndelivered(NamedTuple):
    """Runs ended that were sent to another engine the maximum number of times and never began."""

    run_ids: tuple[str, ...]


class LinesDropped(NamedTuple):
    """The log was too slow for this number of lines."""

    lines: int


WorkerEvent = (
    WorkerStarted
    | SupervisorReady
    | SupervisorStopping
    | WorkerStopping
    | WorkerEnded
    | WorkerGaveUp
    | WorkerStalled
)

_OtherEvent = (
    ResultDropped
    | WorkerEvent
    | StoreFailed
    | StoreRecovered
    | EngineFailed
    | ClaimsHandedBack
    | RunOverdue
    | UnknownTaskDelivered
    | RunsUndelivered
)

Event = AttemptEnded | _OtherEvent
LogEntry = LoggedAttempt | LinesDropped | _OtherEvent

Subscriber = Callable[[Event], None]


class EventLog(Protocol):
    """Writes events to the log of this process. An emitter never waits for it."""

    def wants_successes(self) -> bool:
        """Return whether successes have lines at the present log level."""
        ...

    def has_room(self) -> bool:
        """Return whether successes can be added now."""
        ...

    def drop(self, lines: int) -> None:
        """Count lines that are not added because there is no room."""
        ...

    def add(self, event: Event | LoggedAttempt, at: float | None = None) -> None:
        """Take an event to be written, or count it if there is no room.

        `at` is the wall time of the event in seconds; without it, that is now.
        """
        ...

    def start(self, owner: object) -> None:
        """Write on a thread of its own until each owner has called `stop`."""
        ...

    def stop(self, owner: object) -> bool:
        """Write what is left. Return False if the log took too long for that."""
        ...


class EventBus:
    """Passes events to the log, and to subscribers in the thread that emits them."""

    def __init__(self, log: EventLog | None = None) -> None:
        self.log = log
        self._subscribers: tuple[Subscriber, ...] = ()
        self.wants_successes = False
        """True if a subscriber wants an event for every success. There are many."""

    @property
    def success_log(self) -> EventLog | None:
        """The log, if successes have lines there and no subscriber wants events of them."""
        log = None if self.wants_successes else self.log
        return None if log is None or not log.wants_successes() else log

    def start_log(self, owner: object) -> None:
        """Let the log be written by a thread of its own, so that no emitter waits for it."""
        if self.log is not None:
            self.log.start(owner)

    def stop_log(self, owner: object) -> bool:
        """Write what is left in the log. Return False if the log took too long for that."""
        return self.log is None or self.log.stop(owner)

    def subscribe(self, subscriber: Subscriber, *, successes: bool = True) -> None:
        """Call `subscriber` with every later event, or with all but those of plain successes.

        It may get these too, if another subscriber wants them.
        """
        self._subscribers = (*self._subscribers, subscriber)
        self.wants_successes = self.wants_successes or successes

    def emit(self, event: Event) -> None:
        """Log an event and call every subscriber.

        An exception is reported and stops neither other subscribers nor us.
        """
        if self.log is not None:
            self.log.add(event)
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except SystemExit as error:
                # In the main thread a signal handler raises it, even in the middle of a subscriber.
                if threading.current_thread() is threading.main_thread():
                    raise
                _report(
                    RuntimeError(
                        f"a subscriber called sys.exit({error.code!r}), which does not end the "
                        "process here"
                    ).with_traceback(error.__traceback__)
                )
            except Exception as error:  # noqa: BLE001 - it must not end a thread of the engine
                _report(error)


def _report(error: Exception) -> None:
    threading.excepthook(
        threading.ExceptHookArgs(
            (type(error), error, error.__traceback__, threading.current_thread())
        )
    )

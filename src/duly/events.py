"""Facts that are emitted after they are durable.

`duly.observe` turns them into logs, metrics and spans.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

from duly.core.record import Claim, ScheduleRecord
from duly.core.verdict import Verdict


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


WorkerEvent = (
    WorkerStarted
    | SupervisorReady
    | SupervisorStopping
    | WorkerStopping
    | WorkerEnded
    | WorkerGaveUp
    | WorkerStalled
)

Event = (
    AttemptEnded
    | ResultDropped
    | WorkerEvent
    | StoreFailed
    | StoreRecovered
    | EngineFailed
    | ClaimsHandedBack
    | RunOverdue
    | UnknownTaskDelivered
    | RunsUndelivered
)

Subscriber = Callable[[Event], None]


class EventBus:
    """Passes events to subscribers, in the thread that emits them."""

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()
        self._wants_successes: tuple[Callable[[], bool], ...] = ()

    @property
    def wants_successes(self) -> bool:
        """True if a subscriber wants an event for every success. There are many."""
        return any(wants() for wants in self._wants_successes)

    def subscribe(
        self, subscriber: Subscriber, *, successes: Callable[[], bool] = lambda: True
    ) -> None:
        """Call `subscriber` with every later event.

        While `successes` returns False, events of plain successes may be left out.
        """
        self._subscribers = (*self._subscribers, subscriber)
        self._wants_successes = (*self._wants_successes, successes)

    def replace(self, subscriber: Subscriber, other: Subscriber) -> None:
        """Replace a subscriber by another one."""
        self._subscribers = tuple(
            other if each is subscriber else each for each in self._subscribers
        )

    def emit(self, event: Event) -> None:
        """Call every subscriber.

        An exception is reported and stops neither other subscribers nor us.
        """
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

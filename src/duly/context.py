"""The context of a running task: what it can read and write about its own run."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from duly.core.record import Claim, StepRecord
from duly.core.states import tags_of_caller
from duly.core.unresolved_steps import effect_key
from duly.errors import BadOption, CancelRequested, NoCurrentRun, StepNotAwaited
from duly.open_steps import OpenSteps, StepVanished, Suspend
from duly.registry import Definition, Registry
from duly.run_log import RunLogger
from duly.store.ops.steps import EndStep
from duly.store.outage_wait import CURRENT_RUN
from duly.store.protocol import Store
from duly.store.task_connection import BODY

Connection = Any
"""A connection object of the database driver."""

Left = TypeVar("Left", Suspend, StepVanished)


class TransactionPort(Protocol):
    """The transactions of tasks."""

    def connection(self, claim: Claim) -> Connection: ...
    def begin(self, claim: Claim, *, for_step: bool = False) -> Connection: ...
    def abandon(self, claim: Claim, error: BaseException) -> BaseException: ...
    def joined(self, claim: Claim, store: object) -> Connection | None: ...
    def is_open(self, claim: Claim) -> bool: ...
    def record(self, claim: Claim, op: EndStep, *, commit: bool) -> bool | None: ...


class WorkerPort(Protocol):
    """The parts of a worker that the context of a body needs."""

    @property
    def store(self) -> Store | None:
        """None if the body runs in a process of its own."""
        ...

    @property
    def registry(self) -> Registry | None:
        """The tasks known here. None if the body runs in a process of its own."""
        ...

    @property
    def task_transactions(self) -> TransactionPort | None:
        """None if the body runs in a process of its own: a transaction cannot cross processes."""
        ...

    def progress(self, claim: Claim, fraction: float | None, text: str | None) -> None: ...
    def log(self, claim: Claim, level: str, message: str) -> None: ...
    def is_cancelled(self, claim: Claim) -> bool: ...
    def wait_until(self, claim: Claim, deadline: float | None) -> float: ...


class RunContext:
    """The current run, as seen from inside its body."""

    __slots__ = (
        "_claim",
        "_log",
        "_open",
        "_port",
        "_steps",
        "_used",
        "deadline",
        "has_ended",
        "leaving_error",
    )

    def __init__(self, claim: Claim, port: WorkerPort, deadline: float | None) -> None:
        self._claim = claim
        self._port = port
        self._log: RunLogger | None = None
        self._steps: dict[str, StepRecord] | None = None
        self._used: set[str] = set()
        self._open: OpenSteps | None = None
        self.has_ended = False
        self.leaving_error: Suspend | StepVanished | None = None
        """The exception raised to leave the body. A body that still continues has caught it."""
        self.deadline = deadline
        """When the attempt's timeout expires, on the clock of `duly.clock.monotonic`; or None."""

    @property
    def run_id(self) -> str:
        """The run's id. It is the same for all attempts."""
        return self._claim.run_id

    @property
    def task(self) -> str:
        """The task name that the run was enqueued with."""
        return self._claim.task

    @property
    def queue(self) -> str:
        """The queue that the run was claimed from."""
        return self._claim.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._claim.attempt

    @property
    def generation(self) -> int:
        """1, plus one for every retry by an operator."""
        return self._claim.generation

    @property
    def fence(self) -> int:
        """A number that grows with every claim. Pass it to stores that refuse smaller numbers."""
        return self._claim.claim_number

    @property
    def tags(self) -> dict[str, str]:
        """The tags that the run was enqueued with."""
        return tags_of_caller(self._claim.tags)

    @property
    def log(self) -> "RunLogger":
        """A logger whose lines are stored with the run."""
        if self._log is None:
            with _creation_lock:
                self._log = self._log or RunLogger(self._claim, self._port)
        return self._log

    @property
    def connection(self) -> Connection:
        """A connection whose writes commit with this run's completion (`transaction=True`)."""
        return self._task_transactions().connection(self._claim)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction for the last part of the task. It commits with the run's completion.

        Runs enqueued inside it are part of it. If the block raises, everything in it is undone.
        """
        transactions = self._task_transactions()
        connection = transactions.begin(self._claim)
        try:
            yield connection
        except BaseException as error:
            why = transactions.abandon(self._claim, error)
            if why is not error:
                raise why from error
            raise

    def joined(self, store: object) -> Connection | None:
        """Return the open connection that writes to this store must use, or None."""
        transactions = self._port.task_transactions
        return None if transactions is None else transactions.joined(self._claim, store)

    # -- steps --

    @property
    def store(self) -> Store:
        """The store that contains this run."""
        found = self._port.store
        if found is None:
            raise BadOption("a task with executor='process' cannot have steps")
        return found

    def definition_of(self, task: str) -> Definition | None:
        """Return the definition of a task, or None if the task is not known here."""
        registry = self._port.registry
        return None if registry is None else registry.find(task)

    def steps(self) -> dict[str, StepRecord]:
        """Return the steps on record when this attempt first asked, by name."""
        if self._steps is None:
            is_new = self._claim.claim_number == 1
            found = [] if is_new else self.store.list_steps(self._claim.run_id)
            self._steps = {record.name: record for record in found}
        return self._steps

    def use_step(self, name: str) -> str:
        """Record that this attempt has reached a step. Raise if the name was used before.

        Two steps with one name could not be distinguished.
        """
        self.steps()
        if name in self._used:
            raise BadOption(
                f"this run has already used the step name {name!r}: give every step its own name, "
                f"such as {name}-2"
            )
        self._used.add(name)
        return name

    @property
    def open_steps(self) -> OpenSteps:
        """The steps that are open in this attempt."""
        if self._open is None:
            with _creation_lock:
                self._open = self._open or OpenSteps()
        return self._open

    def unused_steps(self) -> list[str]:
        """Return recorded steps that this attempt has not reached. Empty if it reached no step."""
        if self._steps is None:
            return []
        return [
            name
            for name in self._steps
            if name and name not in self._used and not self._is_skipped(name)
        ]

    def leave(self, error: Left) -> Left:
        """Record and return the exception that leaves the body."""
        self.leaving_error = error
        return error

    def _is_skipped(self, name: str) -> bool:
        """Return whether a step is inside a step that this attempt has skipped."""
        known = self._steps or {}
        for _ in known:
            record = known[name]
            if record.kind != "step":
                # The record of a wait does not name its outer step. If any step was skipped, the
                # wait may be inside it.
                return any(known[used].done for used in self._used & known.keys())
            outer = None if record.awaited is None else known.get(record.awaited)
            if outer is None:
                return False
            if outer.name in self._used:
                # The children of a gather are recorded before the gather is done.
                return outer.done or outer.kind == "gather"
            name = outer.name
        return False

    def effect_key(self, name: str = "") -> str:
        """Return an idempotency key for an outside API: the same for all attempts, unique per name.

        A retry by an operator keeps it too, unless it requests fresh ones.
        """
        return effect_key(self._claim.run_id, self.steps().values(), name)

    def begin_transaction(self) -> bool:
        """Open this run's transaction for a step. Return False if it was already open."""
        transactions = self._task_transactions()
        if transactions.joined(self._claim, self.store) is not None:
            return False
        transactions.begin(self._claim, for_step=True)
        return True

    def refuse_in_transaction(self, what: str) -> None:
        """Refuse an action while this run's transaction is open.

        An action that must be durable at once would be undone with the transaction. A wait leaves
        the body, which would undo the transaction.
        """
        transactions = self._port.task_transactions
        if transactions is not None and transactions.is_open(self._claim):
            raise BadOption(
                f"{what} cannot be part of this run's open transaction: move it before the first "
                "use of the connection, which opens the transaction"
            )

    def abandon_transaction(self, error: BaseException) -> BaseException:
        """Undo what this run's transaction wrote.

        Return the error, or a better one caused by it.
        """
        return self._task_transactions().abandon(self._claim, error)

    def record_step(self, op: EndStep, *, commit: bool) -> bool | None:
        """Record a step in this run's transaction, and end that. Return None if none is open."""
        transactions = self._port.task_transactions
        return None if transactions is None else transactions.record(self._claim, op, commit=commit)

    def _task_transactions(self) -> TransactionPort:
        transactions = self._port.task_transactions
        if transactions is None:
            raise BadOption("a task with executor='process' cannot have a transaction")
        return transactions

    def progress(self, fraction: float | None = None, text: str | None = None) -> None:
        """Report the progress of this attempt, from 0 to 1. It is shown within a second."""
        if fraction is not None and not 0.0 <= fraction <= 1.0:
            message = f"progress must be a fraction from 0 to 1, not {fraction!r}"
            raise BadOption(message)
        share = None if fraction is None else float(fraction)  # It may be any kind of number.
        self._port.progress(self._claim, share, text)

    def wait_until(self) -> float:
        """Return until when (monotonic) an operation of the body may wait for the store."""
        return self._port.wait_until(self._claim, self.deadline)

    def check_cancelled(self) -> None:
        """End the attempt here if a cancel was requested."""
        if self._port.is_cancelled(self._claim):
            raise CancelRequested


_creation_lock = threading.Lock()
_current: ContextVar[RunContext | None] = CURRENT_RUN  # type: ignore[assignment]  # narrower here


def current() -> RunContext:
    """Return the context of the run whose body is calling."""
    found = _current.get()
    if found is None:
        message = "there is no current run: call duly.current() inside a task that a worker runs"
        raise NoCurrentRun(message)
    return found


class RunConnection:
    """The connection of the current run, as an annotation for a parameter of a task.

    It delegates to `current().connection`, so its first use opens the transaction.
    """

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the driver has
        return getattr(current().connection, name)

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        setattr(current().connection, name, value)


CONNECTION = RunConnection()
"""The default of such a parameter. Callers do not, and cannot, pass it."""


def joined_connection(store: object) -> Connection | None:
    """Return the open connection of the body that is calling, if it belongs to this store."""
    found = _current.get()
    return None if found is None else found.joined(store)


def is_inside_body_of(store: object) -> bool:
    """Return whether the caller is the body of a run in this store."""
    return (found := _current.get()) is not None and found._port.store is store  # noqa: SLF001


def leaving_error() -> Suspend | StepVanished | None:
    """Return the exception that was raised to leave the calling body, or None."""
    found = _current.get()
    return None if found is None else found.leaving_error


def current_claim() -> Claim | None:
    """Return the claim of the calling body. None in a process of its own."""
    found = _current.get()
    return None if found is None else found._claim  # noqa: SLF001 - of this module


def set_current(context: RunContext) -> None:
    """Make a run the current one of this context. Only the run's body may execute there."""
    _current.set(context)
    BODY.set(context)


def end_body(context: RunContext) -> OpenSteps | None:
    """Record that a body has ended. Return its open steps, or None if there are none."""
    context.has_ended = True
    steps = context._open  # noqa: SLF001 - of this module
    return None if steps is None or steps.is_empty() else steps


def check_awaited(context: RunContext) -> None:
    """Raise StepNotAwaited if the body, which has returned, forgot the `await` of a step."""
    steps = context._open  # noqa: SLF001 - of this module
    names = [] if steps is None else steps.calls_without_await()
    if names:
        raise StepNotAwaited(
            f"the task called {', '.join(names)} without await, so the step did not run; write "
            "`await` before the call"
        )

"""The open transactions of tasks: each commits together with the end of its run, or not at all."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from duly.core.outcome import Outage, Outcome, Raised, Returned, Stopped
from duly.core.record import Claim
from duly.errors import OUTAGES, BadOption, DulyError, TransactionTooLong, WouldBlockItself
from duly.events import EventBus, ResultDropped
from duly.store.ops.runs import Settled
from duly.store.ops.steps import EndStep
from duly.store.protocol import Store
from duly.store.task_connection import BODY, OWN_TRANSACTION
from duly.store.task_transaction import TaskTransaction
from duly.worker.attempt import error_text, outcome_of
from duly.worker.ended_body import EndedBody
from duly.worker.inflight import InFlightClaim
from duly.worker.settle_ops import ended_event, settle_op
from duly.worker.update_buffer import UpdateBuffer


class InFlightLookup(Protocol):
    """The claims in flight."""

    def get(self, run_id: str) -> InFlightClaim | None: ...


class ParentWaker(Protocol):
    """Wakes the runs that wait for other runs."""

    def wake_parents(self, tags: Iterable[str | None]) -> None: ...


class _OpenTaskTransaction(NamedTuple):
    transaction: TaskTransaction
    thread: int
    body: object


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class TaskTransactions:
    """At most one transaction per run, opened when its body first uses it."""

    def __init__(
        self,
        store: Store,
        hand: InFlightLookup,
        settler: ParentWaker,
        journal: UpdateBuffer,
        bus: EventBus,
        may_write: Callable[[], bool],
    ) -> None:
        self._store = store
        self._hand = hand
        self._settler = settler
        self._journal = journal
        self._bus = bus
        self._may_write = may_write
        self._open: dict[str, _OpenTaskTransaction] = {}

    def connection(self, claim: Claim) -> Any:  # noqa: ANN401 - the driver's own connection
        """Return the connection of a task that was defined with `transaction=True`."""
        held = self._hand.get(claim.run_id)
        if held is None or not (held.definition.transaction or claim.run_id in self._open):
            raise BadOption(
                "current().connection works only in tasks defined with "
                "@app.task(transaction=True); other tasks can end with `with "
                "duly.current().transaction() as connection:`"
            )
        return self._connection(held)

    def begin(self, claim: Claim, *, for_step: bool = False) -> Any:  # noqa: ANN401 - as above
        """Open the transaction of a run for the last part of its body, or for a step.

        The transaction of a step ends with the step, so a coroutine may have one on another thread.
        """
        held = self._hand.get(claim.run_id)
        is_plain = held is not None and held.definition.executor == "thread"
        if held is None or not (is_plain or (for_step and not _is_on_event_loop())):
            raise BadOption(
                "current().transaction() needs a plain def task, which runs on a thread; in an "
                "async def task use `await duly.astep(name, function, transaction=True)`"
            )
        if claim.run_id in self._open:
            raise BadOption(
                "this run already has an open transaction, and transactions cannot be nested: use "
                "a savepoint of the connection, and run steps with transactions one after the other"
            )
        return self._connection(held)

    def abandon(self, claim: Claim, error: BaseException) -> BaseException:
        """Roll back. The run may open another transaction after that.

        Return the error for the body: this one, or the reason why the database had rolled back.
        """
        found = self._open.pop(claim.run_id, None)
        reason = None if found is None else self._roll_back(claim, found)
        return reason if reason is not None and isinstance(error, Exception) else error

    def joined(self, claim: Claim, store: object) -> Any:  # noqa: ANN401 - as above
        """Return the connection that a write of this body to that store must use, or None."""
        found = self._callers(claim) if store is self._store else None
        return None if found is None else found.transaction.connection

    def is_open(self, claim: Claim) -> bool:
        """Return whether the transaction of a run is open, in any thread."""
        return claim.run_id in self._open

    def record(self, claim: Claim, op: EndStep, *, commit: bool) -> bool | None:
        """Record a step in the open transaction, and commit on request. None if none is open."""
        found = self._callers(claim)
        if found is None:
            return None
        if not commit:
            return found.transaction.record(op)
        del self._open[claim.run_id]
        try:
            return found.transaction.record_and_commit(op)
        finally:
            self._journal.release_updates(claim.run_id)

    def conclude(self, held: InFlightClaim, outcome: Outcome, seconds: float) -> Outcome | None:
        """End a body's transaction: commit it with the end of the run, or roll it back.

        Return how the attempt ended, or None if that is recorded.
        """
        found = self._open.pop(held.claim.run_id, None)
        if found is None:
            return outcome
        if isinstance(outcome, Returned):
            if self._may_write():
                return self._commit(held, found.transaction, outcome, seconds)
            outcome = Stopped("its lease expired before its transaction could commit")
        reason = self._roll_back(held.claim, found)
        if isinstance(reason, TransactionTooLong):
            return outcome_of(reason, held.definition, held.claim.arguments)
        if reason is not None and type(outcome) is Raised:
            # The connection was lost: nothing was committed, and the run can run again.
            return Outage(outcome.error)
        return outcome

    def _commit(
        self, held: InFlightClaim, transaction: TaskTransaction, outcome: Outcome, seconds: float
    ) -> Outcome | None:
        claim = held.claim
        op = settle_op(EndedBody(held, outcome, seconds))
        updates = self._journal.final_updates(claim.run_id)
        try:
            answer = transaction.settle_and_commit(op, updates)
        except OUTAGES as error:
            # Everything was rolled back. The run may start again, at no cost.
            self._journal.restore_updates(updates)
            return Outage(error_text(error))
        except Exception as error:  # noqa: BLE001 - such as a deferred constraint: the task failed
            self._journal.restore_updates(updates)
            return outcome_of(error, held.definition, claim.arguments)
        self._journal.confirm_written(updates)
        if answer is Settled.DONE:
            self._settler.wake_parents([claim.tags])
            self._bus.emit(ended_event(held, op))
        else:
            self._bus.emit(ResultDropped(claim.run_id, claim.claim_number))
        return None

    def _connection(self, held: InFlightClaim) -> Any:  # noqa: ANN401 - as above
        run_id = held.claim.run_id
        found = self._open.get(run_id)
        if found is None:
            transaction = self._store.task_transaction(held.definition.transaction_limit)
            self._journal.hold_updates(run_id)
            found = _OpenTaskTransaction(transaction, threading.get_ident(), BODY.get())
            self._open[run_id] = found
        return found.transaction.connection

    def _callers(self, claim: Claim) -> _OpenTaskTransaction | None:
        """Return the open transaction that a write of this caller is a part of, if any.

        A thread that the body started cannot write into it, because only the body's own thread
        knows when it ends. A write of that thread outside of the transaction would bypass it.
        """
        found = self._open.get(claim.run_id)
        if found is None or found.thread == threading.get_ident():
            return found
        if found.body is BODY.get():
            raise WouldBlockItself(OWN_TRANSACTION)
        return None

    def _roll_back(self, claim: Claim, found: _OpenTaskTransaction) -> DulyError | None:
        try:
            return found.transaction.rollback()
        finally:
            self._journal.release_updates(claim.run_id)

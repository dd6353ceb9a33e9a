"""The transactions of bodies: what they write commits with their completion, or not at all."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from duly.core.outcome import Outage, Outcome, Raised, Returned, Stopped
from duly.core.record import Claim
from duly.errors import OUTAGES, BadOption, StoreUnavailable, WouldBlockItself
from duly.events import EventBus, ResultDropped
from duly.store.ops.runs import Settled
from duly.store.ops.steps import EndStep
from duly.store.protocol import Store, TaskTransaction
from duly.store.task_connection import BODY, OWN_TRANSACTION
from duly.worker.attempt import error_text, outcome_of
from duly.worker.ended_body import EndedBody
from duly.worker.inflight import InFlightClaim
from duly.worker.settle_ops import ended_event, settle_op
from duly.worker.update_buffer import UpdateBuffer

_LOST = (
    "the connection was lost while this run's transaction was open, so the transaction was rolled "
    "back; the run can run again"
)


class InFlightLookup(Protocol):
    """What has claims in hand."""

    def get(self, run_id: str) -> InFlightClaim | None: ...


class ParentWaker(Protocol):
    """What lets those go on who wait for runs."""

    def wake_parents(self, tags: Iterable[str | None]) -> None: ...


class _OpenTaskTransaction(NamedTuple):
    task_transaction: TaskTransaction
    thread: int
    body: object


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class TaskTransactions:
    """At most one per run, opened when its body first asks for it."""

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

        That of a step ends with it, so that a coroutine may have one on another thread.
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
        """Undo what was written so far; the run may open another transaction.

        Return what its body is told: the error, unless that comes of its having taken too long.
        """
        found = self._open.pop(claim.run_id, None)
        if found is None:
            return error
        is_lost = found.task_transaction.is_lost
        self._rolled_back(claim, found)
        if not isinstance(error, Exception):
            return error
        too_long = found.task_transaction.too_long
        return too_long or (StoreUnavailable(_LOST) if is_lost else error)

    def joined(self, claim: Claim, store: object) -> Any:  # noqa: ANN401 - as above
        """Return the connection that a write of this body to that store is a part of, if any."""
        found = self._callers(claim) if store is self._store else None
        return None if found is None else found.task_transaction.connection

    def is_open(self, claim: Claim) -> bool:
        """Say whether the transaction of a run is open, in whichever thread."""
        return claim.run_id in self._open

    def record(self, claim: Claim, op: EndStep, *, commit: bool) -> bool | None:
        """Record a step in the open transaction, and end that if asked to; None if none is open."""
        found = self._callers(claim)
        if found is None:
            return None
        if not commit:
            return found.task_transaction.record(op)
        del self._open[claim.run_id]
        try:
            return found.task_transaction.record_and_commit(op)
        finally:
            self._journal.release_updates(claim.run_id)

    def conclude(self, held: InFlightClaim, outcome: Outcome, seconds: float) -> Outcome | None:
        """End a body's transaction: commit it with the completion, or roll it back.

        Return how the attempt ended, or None if that is recorded.
        """
        found = self._open.pop(held.claim.run_id, None)
        if found is None:
            return outcome
        claim, section = held.claim, found.task_transaction
        too_long = section.too_long
        if too_long is not None or not isinstance(outcome, Returned):
            is_lost = section.is_lost
            self._rolled_back(claim, found)
            if too_long is not None:
                return outcome_of(too_long, held.definition, held.claim.arguments)
            # Whatever the body made of it: nothing was committed, and it can run again.
            return Outage(outcome.error) if is_lost and type(outcome) is Raised else outcome
        if not self._may_write():
            self._rolled_back(claim, found)
            return Stopped("its lease expired before its transaction could commit")
        op = settle_op(EndedBody(held, outcome, seconds))
        words = self._journal.final_updates(claim.run_id)
        try:
            answer = section.settle_and_commit(op, words)
        except OUTAGES as error:
            # All of it was rolled back: the run may start again, at no cost.
            self._journal.restore_updates(words)
            return Outage(error_text(error))
        except Exception as error:  # noqa: BLE001 - a deferred constraint, say: the body's failure
            self._journal.restore_updates(words)
            return outcome_of(error, held.definition, held.claim.arguments)
        self._journal.confirm_written(words)
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
            self._journal.hold_updates(run_id)
            section = self._store.task_transaction(held.definition.transaction_limit)
            found = self._open[run_id] = _OpenTaskTransaction(
                section, threading.get_ident(), BODY.get()
            )
        return found.task_transaction.connection

    def _callers(self, claim: Claim) -> _OpenTaskTransaction | None:
        """Return the open transaction that a write of this caller is a part of, if any.

        A thread that the body started cannot write into it, since only the body's own can know
        when it ends; and to write beside it would be to get around it.
        """
        found = self._open.get(claim.run_id)
        if found is None or found.thread == threading.get_ident():
            return found
        if found.body is BODY.get():
            raise WouldBlockItself(OWN_TRANSACTION)
        return None

    def _rolled_back(self, claim: Claim, found: _OpenTaskTransaction) -> None:
        try:
            found.task_transaction.rollback()
        finally:
            self._journal.release_updates(claim.run_id)

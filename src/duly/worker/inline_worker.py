"""Runs what is ready in the calling thread, one run after the other, for tests of users.

The store may lie on the very connection that the caller uses, and nothing of it need be committed.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

from duly import faultpoints
from duly.clock import monotonic, new_id
from duly.context import RunContext, end_body, set_current
from duly.core.concurrency_limits import ClaimLimits, LimitScan
from duly.core.outcome import Outcome
from duly.core.record import Claim, Claims
from duly.core.served_queues import ServedQueues
from duly.core.states import OWN_SLOT_KINDS
from duly.events import EventBus, ResultDropped
from duly.limits import LEASE_SECONDS, TICK_BATCH
from duly.registry import Definition, Registry
from duly.store.ops.carriers import ClaimCarried
from duly.store.ops.recovery import Recover
from duly.store.ops.runs import ClaimRuns, Settled, Want
from duly.store.ops.upkeep import Tick
from duly.store.protocol import Store
from duly.worker.attempt import admission_refusal, await_body, call_body
from duly.worker.ended_body import EndedBody, classify_cancel
from duly.worker.inflight import InFlightClaim
from duly.worker.registration import registration
from duly.worker.services.recovery import judge_unknown
from duly.worker.settle_ops import ended_event, limit_free_outages, settle_op, wake_parents_op
from duly.worker.step_drain import await_step_drain, check_steps, wait_for_step_drain
from duly.worker.task_transactions import TaskTransactions
from duly.worker.update_buffer import UpdateBuffer

Await = Callable[[Callable[..., Coroutine[Any, Any, Outcome]]], Callable[..., Outcome]]
"""Makes a function that waits for a coroutine of one that returns it."""


def _run_on_new_loop(function: Callable[..., Any]) -> Callable[..., Outcome]:
    return lambda *args: asyncio.run(function(*args))


class InlineWorker:
    """A worker without threads; timeouts and leases strike nobody here."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        bus: EventBus,
        *,
        awaiting: Await = _run_on_new_loop,
    ) -> None:
        self._store = store
        self._registry = registry
        self._bus = bus
        self._await = awaiting
        self._journal = UpdateBuffer(store, lambda _claim: False, registry)
        self._transactions = TaskTransactions(store, self, self, self._journal, bus, lambda: True)
        self._journal.task_transactions = self._transactions
        self._held: dict[str, InFlightClaim] = {}
        """What runs now: one run, or none."""
        self._after = ""
        """The limit behind which to look first."""
        self.worker_id = new_id()

    def drain(self) -> int:
        """Run until nothing is ready; return how many attempts that took."""
        names = self._registry.own_names()
        attempts = 0
        with self._registered():
            while claims := self._claim(names):
                for claim in claims:
                    self._run(claim)
                attempts += len(claims)
        return attempts

    def carry(self, run_id: str, claim_number: int) -> bool:
        """Run what another engine's worker was brought; return whether it could be claimed."""
        with self._registered():
            claim: Claim | None
            claim = self._store.do(ClaimCarried(self.worker_id, run_id, claim_number))
            if claim is not None:
                self._run(claim)
        return claim is not None

    @contextmanager
    def _registered(self) -> Iterator[None]:
        lanes = self._registry.lanes_by_task(only_carried=False)
        retentions = self._registry.retentions()
        self._store.do(
            registration(self.worker_id, LEASE_SECONDS, ServedQueues(), lanes, retentions)
        )
        try:
            yield
        except faultpoints.SimulatedCrash:
            raise  # Without a good-bye.
        except BaseException:
            self._unregister()
            raise
        self._unregister()

    @property
    def begun(self) -> frozenset[str]:
        """The runs whose bodies have begun, and whose ends are not recorded."""
        return frozenset(self._held)

    def _unregister(self) -> None:
        self._store.do(Recover(self.worker_id, judge_unknown, stopped=True))

    def _claim(self, names: tuple[str, ...]) -> Claims:
        self._store.do(Tick(TICK_BATCH))
        left: LimitScan | None = LimitScan(self._after)
        while left is not None:
            claims = self._claim_after_limit(self._after, names)
            if claims or claims.limit is None or not claims.has_more_limits:
                return claims
            left = left.remaining(self._after, claims.limit)
            self._after = claims.limit
        return Claims()

    def _claim_after_limit(self, after: str, names: tuple[str, ...]) -> Claims:
        claims = Claims()
        # One at a time: what a run enqueues may be more urgent than what was there before.
        for lane in sorted(OWN_SLOT_KINDS):
            limits = ClaimLimits(self._registry.capacities, after, names=self._registry.names_of)
            ask = ClaimRuns(self.worker_id, (Want(None, lane, 1),), names, limits=limits)
            claims = self._store.do(ask)
            if claims:
                break
        return claims

    def _run(self, claim: Claim) -> None:
        definition = self._registry.get(claim.task)
        began = monotonic()
        outcome = admission_refusal(definition, claim)
        held = InFlightClaim(claim, definition, began)
        if outcome is None:
            held.started_at = began
            self._held[claim.run_id] = held
            outcome = copy_context().run(self._outcome, definition, claim)
        seen = classify_cancel(held, outcome)
        remaining = self._transactions.conclude(held, seen, monotonic() - began)
        if remaining is not None:
            self._settle(EndedBody(held, remaining, monotonic() - began))
        self._held.pop(claim.run_id, None)

    def get(self, run_id: str) -> InFlightClaim | None:
        """Return what runs, for its transaction."""
        return self._held.get(run_id)

    def wake_parents(self, tags: Iterable[str | None]) -> None:
        """Let those go on that waited for runs that have ended, whose tags these are."""
        waking = wake_parents_op(tags)
        if waking is not None:
            self._store.do(waking)

    def _outcome(self, definition: Definition, claim: Claim) -> Outcome:
        context = RunContext(claim, self._journal, None)
        set_current(context)
        if definition.executor == "loop":
            return self._await(_await_all)(context, definition, claim.arguments)
        outcome = call_body(definition, claim.arguments)
        return wait_for_step_drain(context, outcome, definition, claim.arguments)

    def _settle(self, item: EndedBody) -> None:
        claim = item.held.claim
        op = settle_op(limit_free_outages(self._store, item))
        words = self._journal.flush_run(claim.run_id)
        *_, answer = self._store.apply([*words, op])
        self._journal.confirm_written(words)
        if answer is Settled.CANCEL_REQUESTED:
            op = settle_op(item, cancelled=True)
            answer = self._store.do(op)
        if answer is Settled.CLAIM_LOST:
            self._bus.emit(ResultDropped(claim.run_id, claim.claim_number))
            return
        self.wake_parents([claim.tags])
        self._bus.emit(ended_event(item.held, op))


async def _await_all(context: RunContext, definition: Definition, arguments: str) -> Outcome:
    """Wait for a coroutine function and the steps that it leaves behind."""
    outcome = await await_body(definition, arguments)
    steps = end_body(context)
    if steps is not None:
        outcome = await await_step_drain(steps, context, outcome, definition)
    return check_steps(context, outcome, definition, arguments)

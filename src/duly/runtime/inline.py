"""Runs what is ready in the calling thread, one run after the other, for tests of users.

The store may lie on the very connection that the caller uses, and nothing of it need be committed.
"""

import asyncio
import json
import os
import platform
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

from duly.clock import jitter, monotonic, new_id
from duly.context import RunContext, enter
from duly.core.outcome import OUTCOME_NAMES, Outcome
from duly.core.record import Claim
from duly.core.states import OWN_LANES
from duly.core.verdict import Standing, decide, describe
from duly.events import AttemptEnded, Bus
from duly.limits import LEASE_SECONDS, TICK_BATCH
from duly.registry import Definition, Registry
from duly.runtime.attempt import await_body, call_body
from duly.runtime.hand import Held
from duly.runtime.journal import Journal
from duly.runtime.recovery import judge_unknown
from duly.runtime.report import seen_from_outside
from duly.store.ops import ClaimRuns, Recover, RegisterWorker, Settle, Tick, Want
from duly.store.protocol import Store

Await = Callable[[Callable[..., Coroutine[Any, Any, Outcome]]], Callable[..., Outcome]]
"""Makes a function that waits for a coroutine of one that returns it."""


def _by_a_loop_of_its_own(function: Callable[..., Any]) -> Callable[..., Outcome]:
    return lambda *args: asyncio.run(function(*args))


class InlineWorker:
    """A worker without threads; timeouts and leases strike nobody here."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        bus: Bus,
        *,
        awaiting: Await = _by_a_loop_of_its_own,
    ) -> None:
        self._store = store
        self._registry = registry
        self._bus = bus
        self._await = awaiting
        self._journal = Journal(store, lambda _claim: False)
        self.worker_id = new_id()

    def drain(self) -> int:
        """Run until nothing is ready; return how many attempts that took."""
        names = self._registry.names()
        lanes = json.dumps(self._registry.lanes_seen_to(only_carried=False))
        self._store.apply(
            [
                RegisterWorker(
                    self.worker_id,
                    platform.node(),
                    os.getpid(),
                    LEASE_SECONDS,
                    "[]",
                    json.dumps(names),
                    lanes,
                )
            ]
        )
        attempts = 0
        try:
            while claims := self._claim(names):
                for claim in claims:
                    self._run(claim)
                attempts += len(claims)
        finally:
            self._store.apply([Recover(self.worker_id, judge_unknown, stopped=True)])
        return attempts

    def _claim(self, names: tuple[str, ...]) -> list[Claim]:
        self._store.apply([Tick(TICK_BATCH)])
        # One at a time: what a run enqueues may be more urgent than what was there before.
        for lane in sorted(OWN_LANES):
            ask = ClaimRuns(self.worker_id, (Want(None, lane, 1),), names)
            claims: list[Claim] = self._store.apply([ask])[0]
            if claims:
                return claims
        return []

    def _run(self, claim: Claim) -> None:
        definition = self._registry.get(claim.task)
        began = monotonic()
        outcome = copy_context().run(self._outcome, definition, claim)
        outcome = seen_from_outside(Held(claim, definition, began), outcome)
        standing = Standing(claim.attempt, claim.retries_used, claim.crashes, claim.lane)
        op = Settle(
            claim.run_id,
            claim.claim_number,
            OUTCOME_NAMES[type(outcome)],
            decide(standing, outcome, definition.policy, jitter=jitter()),
            int((monotonic() - began) * 1e6),
            describe(outcome),
            claim.keyed,
        )
        self._store.apply([*self._journal.flush_run(claim.run_id), op])
        error = None if op.error is None else str(op.error)
        self._bus.emit(AttemptEnded(claim, op.outcome, op.verdict, op.elapsed, error))

    def _outcome(self, definition: Definition, claim: Claim) -> Outcome:
        enter(RunContext(claim, self._journal, None))
        if definition.executor == "loop":
            return self._await(await_body)(definition, claim.arguments)
        return call_body(definition, claim.arguments)

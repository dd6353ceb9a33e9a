"""Turns the ends of attempts into the ops that record them."""

import json
from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from duly.clock import MICROSECONDS, jitter
from duly.core.batches import MOST_BYTES_PER_CHARACTER, batches, bytes_of
from duly.core.concurrency_limits import slot_of
from duly.core.outcome import OUTCOME_NAMES, Outage, Raised, Returned
from duly.core.record import fast_constructor
from duly.core.retry import Retry
from duly.core.states import HOLD_SLOT_KINDS, PARENT_TAG, State
from duly.core.verdict import AttemptState, Finish, decide, describe
from duly.events import AttemptEnded, LoggedAttempt
from duly.limits import FREE_OUTAGES, TRANSACTION_BYTES
from duly.store.ops.runs import Settle
from duly.store.ops.steps import WakeRuns
from duly.store.protocol import Store
from duly.worker.ended_body import EndedBody
from duly.worker.inflight import InFlightClaim

_OUTAGE_PAUSES = Retry(0, base=0.5, max_delay=10.0)


def limit_free_outages(store: Store, item: EndedBody) -> EndedBody:
    """Return how an attempt ended; an outage costs an attempt after too many of them in a row.

    The attempts on record are the count. No other process adds one while this claim is running.
    """
    outcome = item.outcome
    # A hold task is interrupted by every outage: its effect may have happened.
    if type(outcome) is not Outage or slot_of(item.held.claim.lane) in HOLD_SLOT_KINDS:
        return item
    ends = [attempt.outcome for attempt in store.list_attempts(item.held.claim.run_id)]
    outages = len(list(takewhile(OUTCOME_NAMES[Outage].__eq__, reversed(ends))))
    if outages >= FREE_OUTAGES:
        return item._replace(outcome=Raised(outcome.error, retryable=True, cause="outage"))
    after = _OUTAGE_PAUSES.delay(outages - 1, jitter()) if outages else 0.0
    return item._replace(outcome=outcome._replace(after=after))


def settle_op(item: EndedBody, *, cancelled: bool = False) -> Settle:
    """Decide what follows from one end; `cancelled` once the store has said that this was asked."""
    held, outcome, seconds = item
    claim = held.claim
    elapsed = int(seconds * 1e6)
    if type(outcome) is Returned:
        result = outcome.result
        verdict: Any = _DONE if result is None else Finish(State.SUCCEEDED, None, result)
        return _settle(
            (claim.run_id, claim.claim_number, "returned", verdict, elapsed, None, claim.keyed)
        )
    cancelled = cancelled or held.cancel == "requested"
    standing = AttemptState(claim.attempt, claim.retries_used, claim.crashes, claim.lane, cancelled)
    verdict = decide(standing, outcome, held.definition.policy, jitter=jitter())
    return Settle(
        claim.run_id,
        claim.claim_number,
        OUTCOME_NAMES[type(outcome)],
        verdict,
        elapsed,
        describe(outcome),
        claim.keyed,
    )


def ended_event(held: InFlightClaim, op: Settle) -> AttemptEnded:
    """Return the event of an end that is recorded."""
    error, traceback = None, None
    if op.error is not None:
        error, traceback = str(op.error), op.error.traceback or None
    return AttemptEnded(
        *(held.claim, op.outcome, op.verdict, op.elapsed, error, traceback, _waited(held))
    )


def success_summary(held: InFlightClaim, op: Settle) -> LoggedAttempt:
    """Return what the log shows of a success that is recorded."""
    claim = held.claim
    run = claim.run_id, claim.task, claim.queue, claim.attempt
    return _summary((*run, op.outcome, _DONE, op.elapsed, _waited(held), None, None))


def _waited(held: InFlightClaim) -> int | None:
    """Return for how many microseconds a run had been due when its attempt began."""
    if held.started_at is None:
        return None
    in_hand = int((held.started_at - held.claimed_at) * MICROSECONDS)
    return max(0, held.claim.claimed_at - held.claim.due_at + in_hand)


def wake_parents_op(tags: Iterable[str | None]) -> WakeRuns | None:
    """Return what wakes those who wait for runs that have ended, whose tags these are."""
    found = [json.loads(text) for text in tags if text is not None and PARENT_TAG in text]
    parents = {str(each[PARENT_TAG]) for each in found if PARENT_TAG in each}
    return WakeRuns(tuple(parents)) if parents else None


def in_transactions(batch: list[EndedBody]) -> Iterable[list[EndedBody]]:
    """Divide ends into batches, one transaction each."""
    if _are_small(batch):
        return [batch]
    return batches(batch, most=len(batch), most_bytes=TRANSACTION_BYTES, size_of=_size_of)


def fit_one_transaction(batch: list[EndedBody]) -> bool:
    """Return whether all of these ends may be recorded by one transaction."""
    return _are_small(batch) or sum(map(_size_of, batch)) <= TRANSACTION_BYTES


def _are_small(batch: list[EndedBody]) -> bool:
    """Return whether ends surely fit, as most do; this takes a fraction of the time of a sum."""
    characters = 0
    for held, outcome, _ in batch:
        if type(outcome) is not Returned:
            return False
        characters += len(held.claim.arguments)
        if outcome.result is not None:
            characters += len(outcome.result)
    return MOST_BYTES_PER_CHARACTER * characters <= TRANSACTION_BYTES


def _size_of(item: EndedBody) -> int:
    """Return how many bytes of payload an end writes; it moves the arguments of its run, too."""
    size, outcome = bytes_of(item.held.claim.arguments), item.outcome
    if type(outcome) is Returned:
        return size + bytes_of(outcome.result)
    return size + sum(map(bytes_of, describe(outcome) or ()))


_settle = fast_constructor(Settle)
_summary = fast_constructor(LoggedAttempt)
_DONE = Finish(State.SUCCEEDED)

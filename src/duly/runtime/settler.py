"""Records how attempts ended, in batches, on its own thread."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from duly.clock import jitter, monotonic
from duly.core.outcome import OUTCOME_NAMES, ErrorText, Outcome, Returned
from duly.core.record import Claim
from duly.core.states import State
from duly.core.verdict import Finish, Standing, decide, describe
from duly.errors import OUTAGES
from duly.events import AttemptEnded, Bus, ClaimWasLost, EngineFailed, StoreFailed
from duly.runtime.attempt import error_text
from duly.runtime.hand import Hand, Held
from duly.runtime.journal import Journal
from duly.runtime.report import Ended
from duly.runtime.slots import Slots
from duly.store.protocol import ClaimRuns, Settle, Settled, Store

_BATCH = 500
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class Settler:
    """Blocks on its queue of ended bodies; whatever has gathered goes into one settle."""

    def __init__(
        self,
        store: Store,
        hand: Hand,
        slots: Slots,
        journal: Journal,
        bus: Bus,
        gone: Callable[[], bool],
    ) -> None:
        self._store = store
        self._hand = hand
        self._slots = slots
        self._journal = journal
        self._bus = bus
        self._gone = gone
        """Says whether the worker was declared dead: then nothing can be recorded any more."""
        self._queue: queue.SimpleQueue[list[Ended] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="duly-settler", daemon=True)
        self._offer: Callable[[], ClaimRuns | None] = lambda: None
        self._accept: Callable[[list[Claim]], None] = lambda _claims: None
        self._refuse: Callable[[], None] = lambda: None
        self.requeued: Callable[[float], None] = lambda _after: None
        """Told how soon a run becomes due again."""

    def carry(
        self,
        offer: Callable[[], ClaimRuns | None],
        accept: Callable[[list[Claim]], None],
        refuse: Callable[[], None],
    ) -> None:
        """Let claims ride on settles: one transaction for both where there is one writer."""
        self._offer, self._accept, self._refuse = offer, accept, refuse

    def start(self) -> None:
        """Begin to settle."""
        self._thread.start()

    def report(self, ended: list[Ended]) -> None:
        """Take ended bodies from a runner."""
        self._queue.put(ended)

    def stop(self) -> None:
        """Settle what is left, then end."""
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            batch = self._queue.get()
            more = True
            while batch is not None and more and len(batch) < _BATCH:
                try:
                    following = self._queue.get_nowait()
                except queue.Empty:
                    more = False
                else:
                    if following is None:
                        self._queue.put(None)
                        more = False
                    else:
                        batch = batch + following
            if batch is None:
                return
            self._settle_surely(batch)

    def _settle_surely(self, batch: list[Ended]) -> None:
        """Settle, whatever it takes: a claim that nobody settles would stay running for ever."""
        while True:
            try:
                self.settle(batch)
            except Exception as error:  # noqa: BLE001 - tried again until this worker is gone
                self._bus.emit(EngineFailed("settle", repr(error)))
                _sleep(_LONGEST_PAUSE)
                if self._gone():
                    return
            else:
                return

    def settle(self, batch: list[Ended]) -> None:
        """Record the batch; claims that were lost are dropped with an event."""
        cancelled: set[str] = set()
        tells_successes = self._bus.tells_successes
        while batch:
            ops = [self._op(item, item.held.claim.run_id in cancelled) for item in batch]
            answers = self._apply(batch, ops)
            if answers is None:
                self._hand.release(item.held for item in batch)
                return
            again = []
            done = []
            for item, op, answer in zip(batch, ops, answers, strict=True):
                if answer is Settled.CANCEL_REQUESTED:
                    again.append(item)
                    cancelled.add(op.run_id)
                else:
                    done.append(item.held)
                    if answer is not Settled.DONE or op.outcome != "returned" or tells_successes:
                        self._tell(item, op, answer)
            self._hand.release(done)
            batch = again

    def op(self, held: Held, outcome: Outcome, seconds: float) -> Settle:
        """Build the op that records one end; used by transactional attempts too."""
        return self._op(Ended(held, outcome, seconds), cancelled=False)

    def _op(self, item: Ended, cancelled: bool) -> Settle:  # noqa: FBT001 - internal
        held, outcome, seconds = item
        claim = held.claim
        elapsed = int(seconds * 1e6)
        if type(outcome) is Returned:
            verdict: Any = Finish(State.SUCCEEDED, None, outcome.result)
            return Settle(
                claim.run_id, claim.claim_number, "returned", verdict, elapsed, None, claim.keyed
            )
        cancelled = cancelled or held.cancel == "requested"
        standing = Standing(claim.attempt, claim.retries_used, claim.crashes, claim.lane, cancelled)
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

    def _apply(self, batch: list[Ended], ops: list[Settle]) -> list[Any] | None:
        """Write the ops, waiting out an outage; None if this worker may not write any more."""
        words: list[Any] = []
        if not self._journal.is_quiet():
            words = [op for item in batch for op in self._journal.flush_run(item.held.claim.run_id)]
        pause = _FIRST_PAUSE
        while not self._gone():
            if monotonic() >= self._slots.deadline:
                # The lease may be renewed once the store answers again; if not, we are gone.
                _sleep(_FIRST_PAUSE)
                continue
            ride = self._offer()
            try:
                answers = self._store.apply([*words, *ops, *([ride] if ride else [])])
            except OUTAGES as error:
                if ride:
                    self._refuse()
                self._bus.emit(StoreFailed("settle", str(error), pause))
                _sleep(pause * (0.5 + jitter()))
                pause = min(_LONGEST_PAUSE, pause * 2)
            except Exception:  # noqa: BLE001 - find the culprit, fail it alone
                if ride:
                    self._refuse()
                return [self._apply_alone(op) for op in ops]
            else:
                if ride:
                    self._accept(answers.pop())
                return answers[len(words) :]
        return None

    def _apply_alone(self, op: Settle) -> Any:  # noqa: ANN401
        try:
            return self._store.apply([op])[0]
        except OUTAGES:
            raise
        except Exception as error:  # noqa: BLE001 - the run must not stay running for ever
            text: ErrorText = error_text(error)
            failed = Finish(State.FAILED, "unrecordable")
            return self._store.apply([op._replace(outcome="raised", verdict=failed, error=text)])[0]

    def _tell(self, item: Ended, op: Settle, answer: Settled) -> None:
        claim = item.held.claim
        if answer is Settled.CLAIM_LOST:
            self._bus.emit(ClaimWasLost(claim.run_id, claim.claim_number))
            return
        if not isinstance(op.verdict, Finish):
            self.requeued(op.verdict.after)
        self._bus.emit(
            AttemptEnded(
                claim,
                op.outcome,
                op.verdict,
                op.elapsed,
                None if op.error is None else str(op.error),
            )
        )


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)

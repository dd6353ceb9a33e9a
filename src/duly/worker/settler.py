"""Records how attempts ended, in batches, on its own thread or on a runner's that is free."""

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from duly.clock import MICROSECONDS, SystemClock, jitter, monotonic
from duly.core.concurrency_limits import is_limited
from duly.core.outcome import Outage
from duly.core.record import Claims
from duly.core.states import PARENT_TAG, State
from duly.core.verdict import Finish
from duly.errors import OUTAGES
from duly.events import EngineFailed, EventBus, EventLog, ResultDropped, StoreFailed
from duly.store.ops.runs import ClaimRuns, Settle, Settled
from duly.store.protocol import Store
from duly.store.refusal import REFUSALS
from duly.worker.attempt import error_text
from duly.worker.ended_body import EndedBody
from duly.worker.inflight import InFlightClaim, InFlightClaims
from duly.worker.settle_ops import (
    ended_event,
    fit_one_transaction,
    in_transactions,
    limit_free_outages,
    settle_op,
    success_summary,
    wake_parents_op,
)
from duly.worker.start_marks import StartMarks
from duly.worker.update_buffer import UpdateBuffer, for_another_try, in_batches

_BATCH = 500
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class Settler:
    """Blocks on its queue of ended bodies; whatever has gathered goes into one settle."""

    def __init__(
        self,
        store: Store,
        hand: InFlightClaims,
        slots: StartMarks,
        journal: UpdateBuffer,
        bus: EventBus,
        gone: Callable[[], bool],
    ) -> None:
        self._store = store
        self._hand = hand
        self._slots = slots
        self._journal = journal
        self._bus = bus
        self._gone = gone
        """Says whether the worker was declared dead: then nothing can be recorded any more."""
        self._clock = SystemClock()
        self._queue: queue.SimpleQueue[list[EndedBody] | None] = queue.SimpleQueue()
        self._later: deque[tuple[float, list[EndedBody]]] = deque()
        """What the store refused for now, each with the time (monotonic) of the next try."""
        self._thread = threading.Thread(target=self._serve, name="duly-settler", daemon=True)
        self._offer: Callable[[], ClaimRuns | None] = lambda: None
        self._accept: Callable[[Claims], None] = lambda _claims: None
        self._refuse: Callable[[], None] = lambda: None
        self.requeued: Callable[[float], None] = lambda _after: None
        """Told how soon a run becomes due again."""
        self._is_serving = False
        self._turned_at = self._began_here_at = 0.0
        self._is_settling_here = False
        self.rests: Callable[[], None] = lambda: None
        """Told when there is nothing to settle, and so nothing that a claim could ride on."""

    def carry(
        self,
        offer: Callable[[], ClaimRuns | None],
        accept: Callable[[Claims], None],
        refuse: Callable[[], None],
    ) -> None:
        """Let claims ride on settles: one transaction for both where there is one writer."""
        self._offer, self._accept, self._refuse = offer, accept, refuse

    @property
    def is_busy(self) -> bool:
        """Whether a settle is under way, on whichever thread."""
        return self._is_serving or self._is_settling_here

    def start(self) -> None:
        """Begin to settle."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Return whether its thread runs."""
        return self._thread.is_alive()

    def report(self, ended: list[EndedBody]) -> None:
        """Take ended bodies from a runner."""
        self._queue.put(ended)

    @property
    def name(self) -> str:
        """The name of its thread."""
        return self._thread.name

    @property
    def turn_began_at(self) -> float | None:
        """When (monotonic) the settle under way began, on whichever thread; None if none is."""
        here = self._began_here_at if self._is_settling_here else math.inf
        began_at = min(here, self._turned_at if self._is_serving else math.inf)
        return None if began_at == math.inf else began_at

    def stop(self, *, wait: bool = True) -> None:
        """Settle what is left, then end; wait for that unless a write hangs."""
        self._queue.put(None)
        if wait:
            self._thread.join()

    def _serve(self) -> None:
        is_stopping = False
        while not (is_stopping and (not self._later or self._gone())):
            batch = self._take()
            if batch is None:
                is_stopping = True
                continue
            self._turned_at = monotonic()
            self._is_serving = True
            while len(batch) < _BATCH and not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    self._queue.put(None)
                    break
                batch = batch + following
            for part in in_transactions(batch):
                self._settle_until_recorded(part)
            if self._queue.empty():
                self._is_serving = False
                self.rests()

    def _take(self) -> list[EndedBody] | None:
        """Return what has ended, or what is to be tried again now; None when asked to stop."""
        wait = self._later[0][0] - monotonic() if self._later else None
        # Before the queue, which may never be empty.
        if wait is not None and wait <= 0:
            return self._later.popleft()[1]
        try:
            return self._queue.get(timeout=wait)
        except queue.Empty:
            return self._later.popleft()[1]

    def _settle_until_recorded(self, batch: list[EndedBody]) -> None:
        """Settle, whatever it takes: a claim that nobody settles would stay running for ever."""
        while True:
            try:
                self.settle(batch)
            except OUTAGES as error:
                self._bus.emit(StoreFailed("settle", str(error), _LONGEST_PAUSE))
                _sleep(_LONGEST_PAUSE)
                if self._gone():
                    return
            except Exception as error:  # noqa: BLE001 - tried again until this worker is gone
                self._bus.emit(EngineFailed("settle", repr(error)))
                _sleep(_LONGEST_PAUSE)
                if self._gone():
                    return
            else:
                return

    def settle(self, batch: list[EndedBody]) -> None:
        """Record the batch; claims that were lost are dropped with an event."""
        self._turned_at = monotonic()
        if Outage in {type(item.outcome) for item in batch}:
            batch = [limit_free_outages(self._store, item) for item in batch]
        ops = [settle_op(item) for item in batch]
        while batch:
            answers = self._apply(batch, ops)
            if answers is None:
                # Whoever called this worker dead settles what it held.
                for op in ops:
                    self._bus.emit(ResultDropped(op.run_id, op.claim_number))
                self._hand.release([item.held for item in batch])
                return
            batch = self._conclude(batch, ops, answers)
            ops = [settle_op(item, cancelled=True) for item in batch]

    def settle_here(self, batch: list[EndedBody]) -> None:
        """Record the batch in the calling thread, which has nothing else to do just now.

        This spares two changes of threads per batch. There is one try: whatever is not plain goes
        the usual way.
        """
        self._began_here_at = monotonic()
        self._is_settling_here = True
        try:
            is_plain = Outage not in {type(item.outcome) for item in batch}
            is_small = fit_one_transaction(batch)
            if is_plain and is_small and self._may_write() and self._journal.is_quiet():
                ops = [settle_op(item) for item in batch]
                batch = self._conclude(batch, ops, self._write(ops))
        except OUTAGES:
            pass  # The settler's own thread tries again, with pauses, and tells of it.
        except Exception as error:  # noqa: BLE001 - the settler's own thread tries again
            self._bus.emit(EngineFailed("settle", repr(error)))
        finally:
            if batch:
                self._queue.put(batch)
            self._is_settling_here = False
            self.rests()

    def _may_write(self) -> bool:
        return not self._gone() and monotonic() < self._slots.deadline

    def _apply(self, batch: list[EndedBody], ops: list[Settle]) -> list[Any] | None:
        """Write the ops, waiting out an outage; None if this worker may not write any more."""
        words: list[list[Any]] = []
        if not self._journal.is_quiet():
            run_ids = [item.held.claim.run_id for item in batch]
            said = [op for run_id in run_ids for op in self._journal.flush_run(run_id)]
            words = list(in_batches(said))
        pause = _FIRST_PAUSE
        while not self._gone():
            self._turned_at = monotonic()
            if not self._may_write():
                # The lease may be renewed once the store answers again; if not, we are gone.
                _sleep(_FIRST_PAUSE)
                continue
            try:
                while len(words) > 1:
                    self._write_updates(words[0])
                    del words[0]
                return self._write(ops, words[0] if words else ())
            except OUTAGES as error:
                # The first ops of a call may be written although the others are not.
                words = list(map(for_another_try, words))
                self._bus.emit(StoreFailed("settle", str(error), pause))
                _sleep(pause * (0.5 + jitter()))
                pause = min(_LONGEST_PAUSE, pause * 2)
        return None

    def _write(self, ops: list[Settle], words: Sequence[Any] = ()) -> list[Any]:
        """Write the ops, and a claim with them if there is one to carry; an outage is raised."""
        ride = self._offer()
        try:
            answers = self._store.apply([*words, *ops, *([ride] if ride else [])])
        except OUTAGES:
            if ride:
                self._refuse()
            raise
        except Exception:  # noqa: BLE001 - find the culprit, fail it alone
            if ride:
                self._refuse()
            self._write_updates(words)
            return [self._apply_alone(op) for op in ops]
        if ride:
            self._accept(answers.pop())
        self._journal.confirm_written(words)
        return answers[len(words) :]

    def _write_updates(self, words: Sequence[Any]) -> None:
        """Write what bodies said apart from their ends, but no line that the store has already."""
        try:
            self._store.apply(for_another_try(words))
        except OUTAGES:
            raise
        except Exception as error:  # noqa: BLE001 - no line is worth a run that stays running
            self._bus.emit(EngineFailed("settle", repr(error)))
        self._journal.confirm_written(words)

    def _apply_alone(self, op: Settle) -> Settled | None:
        """Record one end; None if that has to be tried again later, apart from the others."""
        try:
            return self._apply_one(op)
        except OUTAGES:
            raise
        except REFUSALS as error:
            # What the body returned cannot be stored, and the run must not stay running for ever.
            failed = Finish(State.FAILED, "unrecordable")
            instead = op._replace(outcome="raised", verdict=failed, error=error_text(error))
        except Exception as error:  # noqa: BLE001 - it may succeed later, and others must not wait
            self._bus.emit(EngineFailed("settle", repr(error)))
            return None
        try:
            return self._apply_one(instead)
        except OUTAGES:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._bus.emit(EngineFailed("settle", repr(error)))
            return None

    def _apply_one(self, op: Settle) -> Settled:
        self._turned_at = monotonic()
        return self._store.do(op)

    def _conclude(
        self, batch: list[EndedBody], ops: list[Settle], answers: list[Any]
    ) -> list[EndedBody]:
        """Let go of what is recorded or lost; return what has to be decided again."""
        log = self._bus.success_log
        tells_successes = self._bus.wants_successes if log is None else log.has_room()
        untold = 0
        # Looked up once: members of an Enum are slow to reach.
        recorded, refused, lost = Settled.DONE, Settled.CANCEL_REQUESTED, Settled.CLAIM_LOST
        done: list[InFlightClaim] = []
        told: list[tuple[InFlightClaim, Settle]] = []
        again: list[EndedBody] = []
        later: list[EndedBody] = []
        of_children: list[str] = []
        lanes: set[str] = set()
        for item, op, answer in zip(batch, ops, answers, strict=True):
            if answer is refused:
                again.append(item)
                continue
            if answer is None:
                later.append(item)
                continue
            held = item.held
            done.append(held)
            claim = held.claim
            if answer is lost:
                # Before the release: the process of a carried run may end right after it.
                self._bus.emit(ResultDropped(claim.run_id, claim.claim_number))
            lanes.add(claim.lane)
            tags = claim.tags
            if tags is not None and PARENT_TAG in tags:
                of_children.append(tags)
            if answer is recorded:
                if op.outcome != "returned" or tells_successes:
                    told.append((held, op))
                else:
                    untold += 1
        self._hand.release(done)
        if told:
            self._tell(told, log)
        if untold and log is not None:
            log.drop(untold)
        if later:
            self._report_later(later)
        if of_children:
            self.wake_parents(of_children)
        if any(map(is_limited, lanes)):
            self._store.wake()  # Others may wait for what was just let go.
        return again

    def _report_later(self, ended: list[EndedBody]) -> None:
        self._later.append((monotonic() + _LONGEST_PAUSE, ended))
        self._queue.put([])  # So that the settler's thread waits no longer than until then.

    def wake_parents(self, tags: Iterable[str | None]) -> None:
        """Let those go on that waited for runs that have ended, whose tags these are.

        Should this be lost, a look at all that wait makes up for it.
        """
        op = wake_parents_op(tags)
        if op is not None:
            self._store.submit([op], lambda _answers: None)

    def _tell(self, ends: list[tuple[InFlightClaim, Settle]], log: EventLog | None) -> None:
        """Emit the events of ends, in their order. Only the log gets successes, if it is given."""
        at = self._clock.now() / MICROSECONDS
        for held, op in ends:
            if log is not None and op.outcome == "returned":
                log.add(success_summary(held, op), at)
            else:
                if not isinstance(op.verdict, Finish):
                    self.requeued(op.verdict.after)
                self._bus.emit(ended_event(held, op))


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)

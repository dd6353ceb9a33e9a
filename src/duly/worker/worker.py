"""One worker: claims runs, lets runners run them, settles how they ended.

Its threads: the claim loop, the upkeep loop, the settler, the runners' threads, the event loop
and the store's listener. Its owner (a supervisor process, or the keepalive thread of an embedded
worker) sends the heartbeats and publishes the deadline in the slots.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from duly.clock import monotonic
from duly.core.outcome import HandedBack
from duly.core.record import Claim
from duly.errors import ClaimLost, StoreError
from duly.events import ClaimsHandedBack, EventBus, WorkerStarted
from duly.limits import CLAIM_BATCH, TICK_BATCH
from duly.registry import Registry
from duly.settings import WorkerSettings
from duly.store.ops.carriers import RerouteRuns
from duly.store.ops.upkeep import Tick
from duly.store.protocol import Store
from duly.store.reads import Peek
from duly.worker.claim_policy import QueueLimit
from duly.worker.claimer import Claimer
from duly.worker.dispatcher import Dispatcher
from duly.worker.ended_body import EndedBody
from duly.worker.engine_threads import EngineThreads
from duly.worker.inflight import LOOP, THREAD, InFlightClaims
from duly.worker.registration import registration
from duly.worker.runners.event_loop import EventLoopRunner
from duly.worker.runners.loop_shutdown import LoopShutdownMonitor
from duly.worker.runners.process import ProcessPool
from duly.worker.runners.thread import ThreadRunner
from duly.worker.service_loop import Service, ServiceLoop
from duly.worker.services import maintenance
from duly.worker.services.hint_handler import HintHandler
from duly.worker.services.pruner import Pruner
from duly.worker.services.recovery import Recoverer
from duly.worker.services.relay import Relay
from duly.worker.services.write_monitor import WriteMonitor
from duly.worker.settler import Settler
from duly.worker.start_marks import StartMarks
from duly.worker.task_transactions import TaskTransactions
from duly.worker.update_buffer import UpdateBuffer

_LOOK_SECONDS = 0.02
_RELEASE_SECONDS = 1.0


class Worker:
    """Everything of one worker but its liveness."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        settings: WorkerSettings,
        slots: StartMarks,
        bus: EventBus,
        *,
        worker_id: str,
        takes_suspects: bool,
        beats_since: Callable[[], float | None],
        lookout: LoopShutdownMonitor | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._settings = settings
        self._slots = slots
        self._bus = bus
        self.worker_id = worker_id
        self._gone = threading.Event()
        self.has_stopped, self._stopping = False, threading.Lock()
        self._journal = UpdateBuffer(store, self._is_cancelled, registry, slots.path)
        slot_counts = {LOOP: settings.async_limit, THREAD: settings.concurrency}
        self.inflight = InFlightClaims(slots, slot_counts, CLAIM_BATCH)
        self._settler = Settler(store, self.inflight, slots, self._journal, bus, self._gone.is_set)
        engine = (store, self.inflight, self._settler, self._journal, bus)
        self._journal.task_transactions = TaskTransactions(*engine, self._may_write)
        self._journal.lease_until = lambda: slots.deadline
        self._loop_runner = EventLoopRunner(
            self.inflight, self._report, self._journal, limit=settings.async_limit, lookout=lookout
        )
        self._processes = ProcessPool(self._journal)
        self._thread_runner = ThreadRunner(
            self.inflight,
            self._report,
            self._journal,
            limit=settings.concurrency,
            run_in_process=self._processes.run,
            conclude=self._journal.task_transactions.conclude,
        )
        runners = self._loop_runner, self._thread_runner
        self._dispatch = Dispatcher(self.inflight, self._settler, *runners).dispatch
        self._claimer = Claimer(
            store,
            registry,
            self.inflight,
            slots,
            self._dispatch,
            worker_id=worker_id,
            queues=tuple(QueueLimit(*queue) for queue in settings.queues),
            takes_suspects=takes_suspects,
            **settings.claim_bounds,
        )
        self._claims_ride = store.has_one_writer and not (settings.queues or settings.max_tasks)
        self._hinted = HintHandler(store, registry, self._claimer, worker_id, self._look_for_runs)
        self._claims = ServiceLoop("duly-claims", [self._hinted, self._claimer], bus)
        self._promoter = self._new_promoter()
        self._relay = Relay(store, registry, bus)
        # Apart from the others too: a broker may keep it waiting.
        self._handing = ServiceLoop("duly-relay", [self._relay], bus)
        self._is_handing = False
        self._scheduler = maintenance.Scheduler(store)
        self._upkeep = ServiceLoop("duly-maintenance", self._services(beats_since), bus)
        # Apart from the others, whose writes may have to wait for a body's transaction.
        self.write_monitor = WriteMonitor(store, bus, worker_id, beats_since, settings.lease)
        self._watch = ServiceLoop("duly-timeouts", [*self._watchers(), self.write_monitor], bus)
        self.threads = self._engine_threads(beats_since)
        self._end_listening: Callable[[], None] = lambda: None
        self._life: Any = None

    # -- lifecycle --

    def start(self) -> None:
        """Register, the first proof of life, and listen; start no thread unless both succeed."""
        self._life = self._store.live(self.worker_id)
        sent_at = monotonic()
        self._register()
        self._slots.deadline = sent_at + self._settings.lease - self._settings.margin
        self._slots.registered = True
        self._settler.requeued = self._hurry_promoter_after
        if self._claims_ride:
            claimer = self._claimer
            self._settler.carry(claimer.offer, claimer.accept, claimer.refuse)
            self._settler.rests = self._on_rest
        self.inflight.changed = self._on_release
        self._hinted.hurry = partial(self._claims.hurry, self._hinted)
        self._hinted.peek = partial(self._upkeep.hurry, self._promoter)
        self._hinted.reread = partial(self._upkeep.hurry, self._hinted.reader, within=1.0)
        self._end_listening = self._store.listen(self._hint, self._hinted.hear)
        self._settler.start()
        self._loop_runner.start()
        self._thread_runner.start()
        self._claims.start()
        self._upkeep.start()
        self._watch.start()
        self._begin_handing()
        self._bus.emit(WorkerStarted(self.worker_id, self._store.shown_url))

    def stop_claiming(self) -> None:
        """Take nothing new, start nothing more, and hand back what has not started."""
        self.inflight.accepting = False
        self._claims.stop(wait=not self.threads.has_stalled)
        unstarted = self.inflight.withdraw(lambda _held: True)
        if unstarted:
            self._settler.report([EndedBody(held, HandedBack(), 0.0) for held in unstarted])
            run_ids = tuple(held.claim.run_id for held in unstarted)
            self._bus.emit(ClaimsHandedBack(run_ids, "the worker stops"))

    def wait_until_empty(self, seconds: float) -> bool:
        """Wait for the bodies in hand; say whether all have ended and are recorded."""
        until = monotonic() + seconds
        while not self.inflight.is_empty():
            if monotonic() >= until or self._gone.is_set():
                return self.inflight.is_empty()
            threading.Event().wait(_LOOK_SECONDS)
        return True

    def cancel_bodies(self, why: str) -> None:
        """End the bodies that can be ended from outside: coroutines and subprocesses."""
        for held in self.inflight.started():
            if held.kind == LOOP:
                self._loop_runner.cancel(held, why)
            elif held.definition.executor == "process":
                held.cancel = why

    def disown(self) -> None:
        """The store calls this worker dead: nothing it does counts any more."""
        self._gone.set()
        self.inflight.accepting = False
        self.cancel_bodies("lost")

    @property
    def is_disowned(self) -> bool:
        """Whether the store calls this worker dead."""
        return self._gone.is_set()

    def stop(self) -> None:
        """End all threads; stuck bodies keep theirs, and call for a second stop at their end."""
        wait = not self.threads.has_stalled
        with self._stopping:
            if not self.has_stopped:
                self._end_listening()
                for loop in (self._claims, self._upkeep, self._watch, self._handing):
                    loop.stop(wait=wait)
                self._thread_runner.stop()
                self._processes.stop()
                self._loop_runner.look()
            self.has_stopped = True
        if self.inflight.is_empty():
            self._settler.stop(wait=wait)
            self._loop_runner.stop()

    def end_life(self) -> None:
        """Give up the worker's place; only when it holds nothing any more."""
        if self._life is not None:
            self._life.end()
            self._life = None

    def is_idle(self) -> bool:
        """Return whether nothing is in hand or was left, and no maintenance may bring anything."""
        return self._claimer.has_all() and self._upkeep.turn_began_at is None

    def has_drained(self, *, soon: int = 0) -> bool:
        """Return whether the store has nothing for this worker, now or in `soon` microseconds."""
        if not self.is_idle():
            return False
        looked_at, claims_made = monotonic(), self.claims_made
        try:
            ticked, moved = self._store.do(Tick(1)), self._store.do(RerouteRuns(TICK_BATCH))
            peek = self._store.peek()
            if any(at is not None and at <= soon for at in (peek.next_due_in, peek.next_fire_in)):
                return False
            has_work = bool((ticked and ticked.promoted) or moved) or self._has_work(peek)
            # Whether a limit lets one of them run, only a claim can tell.
            if peek.limited and not self._claimer.has_none_of_limits():
                return False
        except StoreError:
            return False
        if has_work:
            self._look_for_runs()
        # A claim made since the first look would hide its runs from the second.
        if has_work or not self.is_idle() or self.claims_made != claims_made:
            return False
        self._slots.note_drained(claims_made, looked_at)
        return True

    def _has_work(self, peek: Peek) -> bool:
        served = self._settings.served_queues
        if served.is_every or not (peek.ready or peek.suspect):
            return peek.ready or peek.suspect
        # What waits in queues that this worker does not serve is not its work.
        return any(each.ready for each in self._store.list_queues() if served.includes(each.name))

    def has_spent_its_tasks(self) -> bool:
        """Return whether all tasks that this worker may begin have ended."""
        return self._claimer.is_spent and self.inflight.is_empty()

    @property
    def claims_made(self) -> int:
        """How many claims this worker has ever got."""
        return self._claimer.claims_made

    def limit_queues(self, queues: tuple[tuple[str, int | None], ...]) -> None:
        """Set how many of each queue are run at once, from the next claim on."""
        self._claimer.queues = tuple(QueueLimit(*queue) for queue in queues)
        self._look_for_runs()

    def carry(self, run_id: str, claim_number: int) -> bool:
        """Run what another engine's worker was brought, to its end; say whether it was to be had.

        How it ended is recorded, or the run is lost to this worker, when this returns.
        """
        held = self._claimer.take_carried(run_id, claim_number)
        if held is None:
            return False
        held.released = released = threading.Event()
        self._dispatch([held])
        while not released.wait(_RELEASE_SECONDS):
            if self.inflight.get(run_id) is not held:
                break
        return True

    # -- wiring --

    def _new_promoter(self) -> maintenance.Promoter:
        return maintenance.Promoter(
            self._store,
            self._registry,
            self._claimer,
            self._slots,
            self._look_for_runs,
            self._fire_schedules,
            self._hand_over,
            recheck_seconds=self._settings.recheck,
        )

    def _watchers(self) -> list[Service]:
        """Return what watches the bodies."""
        runners = (self._loop_runner, self._thread_runner)
        return [
            maintenance.TimeoutEnforcer(self.inflight, *runners, self._settler, self._bus),
            maintenance.CancelReader(
                self._store, self.inflight, self._loop_runner, worker_id=self.worker_id
            ),
        ]

    def _engine_threads(self, beats_since: Callable[[], float | None]) -> EngineThreads:
        turning = (self._claims, self._upkeep, self._watch, self._settler)
        runners, after = (self._loop_runner, self._thread_runner), self._settings.stalled_after
        return EngineThreads(
            self._store, self._bus, self.worker_id, beats_since, after, turning, runners
        )

    def _services(self, beats_since: Callable[[], float | None]) -> list[Service]:
        """Return what the upkeep loop ticks."""
        recoverer = Recoverer(
            self._store,
            self._bus,
            self._slots.path.parent,
            own_ids=lambda: frozenset({self.worker_id}),
            beats_since=beats_since,
            lease=self._settings.lease,
            beat=self._settings.beat,
        )
        return [
            self._promoter,
            self._scheduler,
            self._journal,
            recoverer,
            maintenance.Reconciler(self._store, self._claimer, self._bus, self._slots),
            maintenance.Registrar(self._registry, self._register_new_tasks),
            Pruner(self._store, self._settings),
            self._hinted.reader,
        ]

    def _register(self) -> None:
        # Runs of other tasks are parked if only workers that carry are left.
        lanes = self._registry.lanes_by_task(only_carried=self._settings.carries)
        settings, kept = self._settings, self._registry.retentions()
        given = self.worker_id, settings.lease, settings.served_queues, lanes, kept
        self._store.do(registration(*given, version=settings.version))

    def _register_new_tasks(self) -> None:
        """Register again: there are tasks that were defined since."""
        self._register()
        self._begin_handing()

    def _begin_handing(self) -> None:
        if not self._is_handing and self._registry.carriers():
            self._is_handing = True
            self._handing.start()

    def _report(self, ended: list[EndedBody], *, is_free: bool = False) -> None:
        # Together with the claim that rides along, this is what brings new work.
        if is_free and self._claims_ride and self._store.can_write_now():
            self._settler.settle_here(ended)
            return
        self._settler.report(ended)
        if not self._store.has_one_writer and self._claimer.may_find_more():
            self._claims.hurry(self._claimer)

    def _hint(self) -> None:
        self._look_for_runs()
        # A claim is what is most often wanted; what is to come can wait until it is under way.
        self._upkeep.hurry(self._promoter, within=_LOOK_SECONDS)

    def _on_release(self) -> None:
        if not self._claimer.may_find_more():
            return
        # Where claims ride, the next settle carries one anyway, as long as there will be one.
        if not self._claims_ride or self.inflight.is_empty() or not self._settler.is_busy:
            self._look_for_runs()

    def _look_for_runs(self) -> None:
        """Let a claim look for runs: one that rides on a settle, if a settle is under way."""
        self._claimer.is_awaited = True
        is_settling = self._claims_ride and self._settler.is_busy
        # If that settle hangs, the claim waits only this long.
        self._claims.hurry(self._claimer, within=_LOOK_SECONDS if is_settling else 0.0)

    def _on_rest(self) -> None:
        # After the settler's flag: the other side sets its own before it reads that one.
        if self._claimer.is_awaited:
            self._claims.hurry(self._claimer)

    def _fire_schedules(self) -> None:
        self._upkeep.hurry(self._scheduler)

    def _hand_over(self) -> bool:
        """Hurry the relay; say whether there is anything that it could hand over."""
        if self._is_handing:
            self._handing.hurry(self._relay)
        return self._is_handing

    def _hurry_promoter_after(self, after: float) -> None:
        if after < 1.0:
            self._upkeep.hurry(self._promoter)

    def _may_write(self) -> bool:
        return not self._gone.is_set() and monotonic() < self._slots.deadline

    def _is_cancelled(self, claim: Claim) -> bool:
        held = self.inflight.get(claim.run_id)
        if not self._may_write():
            raise ClaimLost(f"run {claim.run_id}", claim.claim_number)
        return held is not None and held.cancel is not None

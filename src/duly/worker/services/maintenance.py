"""The services of a worker: promote, schedule, watch, cancel, reconcile, register."""

from collections.abc import Callable

from duly.clock import MICROSECONDS, jitter, monotonic
from duly.core.outcome import HandedBack
from duly.errors import AttemptTimedOut
from duly.events import ClaimsHandedBack, EventBus, RunOverdue
from duly.limits import FIRE_BATCH, POLL_SECONDS, RECHECK_SECONDS, TICK_BATCH
from duly.registry import Registry
from duly.store.due_schedules import fire_due
from duly.store.ops.carriers import RerouteRuns
from duly.store.ops.steps import RecheckWaits
from duly.store.ops.upkeep import DutyTurn, Tick, Ticked
from duly.store.protocol import Store
from duly.worker.claimer import Claimer
from duly.worker.ended_body import EndedBody
from duly.worker.inflight import LOOP, InFlightClaim, InFlightClaims
from duly.worker.log_spool import remove_stale_files
from duly.worker.runners.event_loop import EventLoopRunner
from duly.worker.runners.thread import ThreadRunner
from duly.worker.services.batch_size import BatchSize
from duly.worker.services.duty_intervals import CONTINUATION_SECONDS, SHORTER
from duly.worker.settler import Settler
from duly.worker.start_marks import StartMarks

_IDLE_PAUSE = 5.0
"""Where hints are heard, polling is there for the hint that was lost with its sender."""
_PARKED_PAUSE = 5.0
_STRAYS_PAUSE = 5.0
_SHORTEST_PAUSE = 0.02
_STALE_SECONDS = 0.5
_RECONCILE_PAUSE = 60.0
_FIRING_SECONDS = 1
_CLOCK_PAUSE = 30.0
"""How often to look whether the clock was set back, after which no schedule seems to be due."""
_ALL_WAITS = RecheckWaits("", TICK_BATCH)
_PATIENCE = 1.0
"""How long a worker leaves due runs to the one that holds the lock, which may be frozen."""
_LONGEST_WAIT = 0.5
"""The longest pause between two tries meanwhile."""


class TickPolicy:
    """Decides when this worker ticks: for due runs at once, for the rest in turn with others."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._size = BatchSize(TICK_BATCH)
        self._is_new = True
        self._is_behind = False
        self._parked_looked_at = 0.0
        self._left_since: float | None = None
        """Since when due runs have been left to another worker."""
        self.pause = _SHORTEST_PAUSE
        """The shortest pause before the next look at due runs."""

    def look(self, now: float, *, due: bool, stuck: bool, parked: bool) -> Ticked | None:
        """Return what a tick did; None if there was no reason for one or it was not our turn."""
        if not due:
            self._left_since, self.pause = None, _SHORTEST_PAUSE
        parked = parked and now - self._parked_looked_at >= _PARKED_PAUSE
        if not (due or stuck or parked):
            return None
        self._parked_looked_at = now
        turn = self._turn(now, due=due, stuck=stuck)
        ticked, _ = self._size.write(
            lambda limit: self._store.do(Tick(limit, turn)),
            lambda ticked, _: ticked is not None and ticked.has_more,
        )
        if ticked is not None:
            self._is_new, self._is_behind = False, ticked.has_more
            self._left_since, self.pause = None, _SHORTEST_PAUSE
        elif due:
            self._left_since = now if self._left_since is None else self._left_since
            self.pause = min(_LONGEST_WAIT, 2 * self.pause) * (0.5 + jitter() / 2)
        return ticked

    def _turn(self, now: float, *, due: bool, stuck: bool) -> DutyTurn | None:
        # Parked runs may wait for the tasks of a new worker. And the holder of the lock may be
        # frozen: a tick without the lock skips the rows that the holder has locked.
        if self._is_new or (self._left_since is not None and now - self._left_since >= _PATIENCE):
            return None
        if due:
            return DutyTurn("tick")
        if self._is_behind:
            return DutyTurn("tick", CONTINUATION_SECONDS)
        return DutyTurn("tick", POLL_SECONDS if stuck else SHORTER * _PARKED_PAUSE)


class Promoter:
    """Moves what has become due to where claims look, and is the poll that backs up the hints."""

    name = "promote"

    def __init__(
        self,
        store: Store,
        registry: Registry,
        claimer: Claimer,
        slots: StartMarks,
        look_for_runs: Callable[[], None],
        fire: Callable[[], None],
        hand_over: Callable[[], bool] = lambda: False,
        *,
        recheck_seconds: float = RECHECK_SECONDS,
    ) -> None:
        self._store = store
        self._registry = registry
        self._claimer = claimer
        self._slots = slots
        self._look_for_runs = look_for_runs
        self._fire = fire
        self._hand_over = hand_over
        self._ticks = TickPolicy(store)
        self._moves = BatchSize(TICK_BATCH)
        self._looks = BatchSize(TICK_BATCH)
        self._relane_at = 0.0
        self._relane_every = CONTINUATION_SECONDS
        self._recheck_seconds = recheck_seconds
        self._recheck_at = 0.0
        self._recheck_next = _ALL_WAITS

    def tick(self) -> float:
        """Look once; do what is due."""
        carried = tuple(self._registry.carriers())
        peek = self._store.peek(carried)
        self._slots.saw_suspect = peek.suspect
        now = monotonic()
        due = peek.next_due_in is not None and peek.next_due_in <= 0
        stuck = peek.ready and self._claimer.found_nothing
        # What waits to be handed over for long may be of a paused queue.
        ticked = self._ticks.look(now, due=due, stuck=stuck, parked=peek.parked or peek.carried)
        next_due_in = peek.next_due_in if ticked is None else ticked.next_due_in
        next_fire_in = peek.next_fire_in
        if next_fire_in is not None and next_fire_in <= 0:
            self._fire()
            # It is under way; if it fails, this is when to look again.
            next_fire_in = _FIRING_SECONDS * MICROSECONDS
        # Another worker may have been faster, and is then not the only one who may claim.
        if due or (ticked is not None and ticked.promoted):
            self._claimer.look_at_limits()
            self._look_for_runs()
            self._hand_over()
        if ticked is not None and ticked.has_more:
            return 0.0
        # Lanes of our own do not tell whose runs are in them: some may be another engine's by now.
        strays = peek.strayed or (bool(carried) and (peek.ready or peek.suspect))
        if strays and now >= self._relane_at and self._relane(now):
            return 0.0
        if peek.awaits and now >= self._recheck_at and self._recheck(now):
            return 0.0
        if peek.limited:
            self._claimer.look_at_limits()
        if peek.ready or peek.limited:
            self._look_for_runs()
        next_stale_in = peek.next_stale_in
        if peek.carried or (next_stale_in is not None and next_stale_in <= 0):
            is_under_way = self._hand_over()
            next_stale_in = _FIRING_SECONDS * MICROSECONDS if is_under_way else None
        longest = _IDLE_PAUSE if self._store.hears_hints() else POLL_SECONDS
        if peek.awaits:
            longest = min(longest, max(_SHORTEST_PAUSE, self._recheck_at - now))
        soonest = min(
            (micros for micros in (next_due_in, next_fire_in, next_stale_in) if micros is not None),
            default=None,
        )
        if soonest is None:
            return longest
        return min(longest, max(self._ticks.pause, soonest / MICROSECONDS))

    def _relane(self, now: float) -> bool:
        """Move ready runs of tasks that gained or lost a carrier; return whether there are more."""
        turn = DutyTurn("relane", self._relane_every)
        moved, is_full = self._moves.write(
            lambda limit: self._store.do(RerouteRuns(limit, turn)),
            lambda moved, limit: moved is not None and moved >= limit,
        )
        if moved:
            self._look_for_runs()
            self._hand_over()
        self._relane_every = CONTINUATION_SECONDS if is_full else SHORTER * POLL_SECONDS
        if not is_full:
            # Where some had strayed, more will, as long as old programs enqueue.
            self._relane_at = now + (POLL_SECONDS if moved else _STRAYS_PAUSE)
        return is_full

    def _recheck(self, now: float) -> bool:
        """Look at some of all runs that wait for something, lest a lost wake-up stay lost."""
        seconds = (
            CONTINUATION_SECONDS if self._recheck_next.after else SHORTER * self._recheck_seconds
        )
        op = self._recheck_next._replace(turn=DutyTurn("recheck", seconds))
        found, goes_on = self._looks.write(
            lambda limit: self._store.do(op._replace(limit=limit)),
            lambda found, _: found is not None and bool(found.after),
        )
        self._recheck_next = _ALL_WAITS
        if found is not None:
            self._recheck_next = _ALL_WAITS._replace(after=found.after, counted=found.counted)
        self._recheck_at = now + (_STALE_SECONDS if goes_on else self._recheck_seconds)
        return found is not None and bool(found.roused)


class Scheduler:
    """Fires the schedules that are due. Every worker does; nobody is elected."""

    name = "schedule"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._size = BatchSize(FIRE_BATCH)

    def tick(self) -> float:
        """Fire one bounded piece of what is due; the promoter says when there is something."""
        fired, _ = self._size.write(
            lambda limit: fire_due(self._store, limit), lambda fired, _: fired.has_more
        )
        if not fired.has_more:
            return _CLOCK_PAUSE
        # If other workers were faster, they continue; two that keep up with each other waste work.
        return 0.0 if fired.looked_at else _FIRING_SECONDS * jitter()


class TimeoutEnforcer:
    """Watches the bodies: timeouts, and claims that wait too long to start.

    It writes and reads nothing in the store, so that an outage does not delay it.
    """

    name = "watch"

    def __init__(
        self,
        hand: InFlightClaims,
        loop_runner: EventLoopRunner,
        thread_runner: ThreadRunner,
        settler: Settler,
        bus: EventBus,
    ) -> None:
        self._hand = hand
        self._loop_runner = loop_runner
        self._thread_runner = thread_runner
        self._settler = settler
        self._bus = bus
        self._told_overdue: set[str] = set()

    def tick(self) -> float:
        """Look at every body once."""
        self._loop_runner.look()
        started = self._hand.started()
        now = monotonic()
        for held in started:
            if held.overdue_at <= now and held.kind != LOOP:
                self._enforce(held)
        self._told_overdue &= {held.claim.run_id for held in started}
        self._hand_back_stale(now)
        soonest = min((held.overdue_at - now for held in started), default=_STALE_SECONDS)
        return min(_STALE_SECONDS, max(_SHORTEST_PAUSE, soonest))

    def _enforce(self, held: InFlightClaim) -> None:
        if held.definition.executor == "process":
            return
        self._thread_runner.interrupt(held, AttemptTimedOut)
        if held.claim.run_id not in self._told_overdue:
            self._told_overdue.add(held.claim.run_id)
            self._bus.emit(RunOverdue(held.claim.run_id, held.claim.task))

    def _hand_back_stale(self, now: float) -> None:
        """Give others what has waited here behind long bodies."""
        stale = self._hand.withdraw_stale(claimed_before=now - _STALE_SECONDS)
        if stale:
            self._settler.report([EndedBody(held, HandedBack(), 0.0) for held in stale])
            run_ids = tuple(held.claim.run_id for held in stale)
            self._bus.emit(ClaimsHandedBack(run_ids, "they waited too long for running tasks"))


class CancelReader:
    """Reads which runs of this worker someone asked to cancel, and cancels them."""

    name = "read cancel requests"

    def __init__(
        self, store: Store, hand: InFlightClaims, loop_runner: EventLoopRunner, *, worker_id: str
    ) -> None:
        self._store = store
        self._hand = hand
        self._loop_runner = loop_runner
        self._worker_id = worker_id

    def tick(self) -> float:
        """Read the requests, if a body runs here."""
        if not self._hand.started():
            return _STALE_SECONDS
        for run_id in self._store.list_cancel_requests(self._worker_id):
            self._cancel(run_id)
        return POLL_SECONDS

    def _cancel(self, run_id: str) -> None:
        held = self._hand.get(run_id)
        if held is None or held.cancel is not None:
            return
        if held.kind == LOOP:
            self._loop_runner.cancel(held, "requested")
        else:
            held.cancel = "requested"


class Reconciler:
    """Compares now and then what the store says is ours with what is in hand, and keeps the marks.

    Marks that are gone cannot tell that a run has not started: with on_crash="hold" it would end
    interrupted.
    """

    name = "reconcile"

    def __init__(self, store: Store, claimer: Claimer, bus: EventBus, slots: StartMarks) -> None:
        self._store = store
        self._claimer = claimer
        self._bus = bus
        self._slots = slots

    def tick(self) -> float:
        """Hand back what we never heard of."""
        self._slots.touch()
        remove_stale_files(self._slots.path.parent, self._store.list_workers)
        run_ids = self._claimer.reconcile()
        if run_ids:
            self._bus.emit(ClaimsHandedBack(tuple(run_ids), "the worker never received the claims"))
        return _RECONCILE_PAUSE


class Registrar:
    """Makes tasks known that were defined after the worker had started.

    Otherwise their runs would be parked as of tasks that nobody knows.
    """

    name = "register"

    def __init__(self, registry: Registry, register: Callable[[], None]) -> None:
        self._registry = registry
        self._register = register
        self._known = registry.names()

    def tick(self) -> float:
        """Look whether there are more."""
        names = self._registry.names()
        if names != self._known:
            self._register()
            self._known = names
        return _STALE_SECONDS

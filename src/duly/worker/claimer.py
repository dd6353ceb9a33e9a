"""Takes ready runs whenever there is room for them."""

import math
import threading
from collections.abc import Callable, Iterator

from duly.clock import monotonic
from duly.core.concurrency_limits import ClaimLimits, LimitScan, is_limited, slot_of
from duly.core.record import Claim, Claims
from duly.core.served_queues import ServedQueues
from duly.core.states import OWN_SLOT_KINDS, SlotKind
from duly.registry import Registry
from duly.store.hints import HintPlace
from duly.store.ops.carriers import ClaimCarried
from duly.store.ops.recovery import HandBackUnknown
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.protocol import Store
from duly.worker.claim_policy import (
    NO_CLAIM,
    ONE_BY_ONE,
    SHARING,
    ClaimRequest,
    FreeSlots,
    QueueLimit,
    is_filled,
)
from duly.worker.inflight import InFlightClaim, InFlightClaims
from duly.worker.start_marks import StartMarks

_BUSY_PAUSE = 3600.0
"""With nothing to claim, or no room: a hint, a freed slot or the poll hurries the claimer."""
_FENCED_PAUSE = 0.05
_TURNS_OF_HOLD = 7
_LIMITS_SECONDS = 1.0
"""How often to look whether something is limited, where nothing was."""
_ROUND_SECONDS = 0.1
"""Between looks that see some limits each, until all have been seen."""
_FLOW_SECONDS = 0.02
"""For how long after a claim that rode on a settle and got runs the next such one is awaited."""


class Claimer:
    """A service: each tick claims once per queue at most."""

    name = "claim"

    def __init__(
        self,
        store: Store,
        registry: Registry,
        hand: InFlightClaims,
        slots: StartMarks,
        dispatch: Callable[[list[InFlightClaim]], None],
        *,
        worker_id: str,
        queues: tuple[QueueLimit, ...],
        exclude_queues: tuple[str, ...] = (),
        max_tasks: int | None = None,
        process_limit: int | None = None,
        one_slot: bool,
        takes_suspects: bool,
        carries: bool = False,
    ) -> None:
        self._store = store
        self._registry = registry
        self._hand = hand
        self._slots = slots
        self._dispatch = dispatch
        self._worker_id = worker_id
        self.queues = queues
        """May be set anew, of the same names, at any time."""
        self._excluded = exclude_queues
        self._left = max_tasks
        """How many more runs may be claimed; None is without a bound."""
        self.room = FreeSlots(
            hand,
            registry,
            process_limit=process_limit,
            one_slot=one_slot,
            takes_suspects=takes_suspects,
            carries=carries,
            # What is claimed counts as begun.
            claims_ahead=max_tasks is None,
        )
        self._turn = 0
        self._turn_of_hold = 0
        self._turn_of_lane = 0
        self._last_queue = ""
        self._limit: str | None = None
        """The last limit that a claim met; None where it met none."""
        self._round: LimitScan | None = None
        """What is left of the looks at limits that have begun, where one did not see all."""
        self._limits_first = False
        self._look_at_limits_at = -math.inf
        self._in_doubt = False
        self._offered = NO_CLAIM
        self._rode_at = -math.inf
        self._claiming = threading.Lock()
        self.found_nothing = False
        """Whether the last look got nothing."""
        self.is_awaited = False
        """Whether there may be runs that no claim has looked for yet."""
        self.left_some = True
        """Whether the last look may have left runs, or one is under way; if not, a hint tells."""
        self.was_full_at_hint = False
        """Whether a hint came for which there was no room, and no look followed yet."""
        self.claims_made = 0

    def tick(self) -> float:
        """Fill the free room, unless claims ride on settles just now."""
        if not self._hand.accepting or self.is_spent:
            return _BUSY_PAUSE
        if monotonic() >= self._slots.deadline:
            return _FENCED_PAUSE
        if monotonic() - self._rode_at < _FLOW_SECONDS:
            return _FLOW_SECONDS
        with self._claiming:
            more = self._look()
            is_under_way = self._round is not None
        # With one writer room comes with a settle, and the next claim with it.
        if more and not self._store.has_one_writer:
            return 0.0
        return _ROUND_SECONDS if is_under_way else _BUSY_PAUSE

    def claim_for_hint(self, place: HintPlace, announcement: str | None) -> tuple[Claims, bool]:
        """Claim runs that a hint names; return them, and whether all room for them was filled."""
        if not self._hand.accepting or monotonic() >= self._slots.deadline:
            return Claims(), False
        with self._claiming:
            if self._in_doubt:
                self._reconcile()
            queues = (queue for queue in self.queues if queue.name == place.queue)
            queue = next(queues, QueueLimit(place.queue))
            ask = self._ask(queue, frozenset({SlotKind(slot_of(place.lane))}))
            claims, more = Claims(), False
            if ask.wants:
                limits = None
                # For other runs, limits are looked at by the look that follows one in vain.
                if is_limited(place.lane) or self._limit is not None:
                    self.look_at_limits()
                    limits = self._limits()
                claims = self._claim(ask.wants, limits, announcement)
                more = is_filled(ask.wants, claims)
                if limits is not None:
                    self._note_limits([claims], limits)
            # An earlier look may have left some elsewhere.
            self.left_some |= ask.leaves_some or more or self._limit is not None
        return claims, more

    def offer(self) -> ClaimRuns | None:
        """Return a claim that rides on a settle; `accept` or `refuse` must follow.

        None if a claim is under way on the claimer's own thread, or there is nothing to ask for.
        """
        if not self._hand.accepting or not self._claiming.acquire(blocking=False):
            return None
        # Until the claim's answer says better.
        self.left_some = True
        self._offered = NO_CLAIM if self._in_doubt else self._ask_at_once()
        if not self._offered.wants:
            self._claiming.release()
            return None
        self._note_claim(under_way=True)
        self.is_awaited = False
        # It asks for some kinds of runs only; what is left of the looks begins anew with the next.
        self._round = None
        return self._op(self._offered.wants, self._limits())

    def accept(self, claims: Claims) -> None:
        """Take what the offered claim got."""
        try:
            self._rode_at = monotonic() if claims else -math.inf
            self.found_nothing = not claims
            self._take(claims)
            self._limit = claims.limit
            wants, leaves_some = self._offered
            self.left_some = leaves_some or is_filled(wants, claims) or self._limit is not None
            self._note_claim(under_way=False)
        finally:
            self._claiming.release()

    def refuse(self) -> None:
        """Note that the offered claim failed; whether it was committed is not known."""
        self.is_awaited = True
        self._claiming.release()

    def take_carried(self, run_id: str, claim_number: int) -> InFlightClaim | None:
        """Take one run that another engine's worker was brought; None if it is not to be had."""
        with self._claiming:
            if not self._hand.accepting or monotonic() >= self._slots.deadline:
                return None
            if self._in_doubt:
                self._reconcile()
            self._in_doubt = True
            claim: Claim | None
            claim = self._store.do(ClaimCarried(self._worker_id, run_id, claim_number))
            self._in_doubt = False
            if claim is None:
                return None
            self.claims_made += 1
            (held,) = self._hand.take([(claim, self._registry.get(claim.task))])
            return held

    def serves(self, queue: str) -> bool:
        """Return whether this worker claims runs of a queue."""
        names = tuple(each.name for each in self.queues)
        return ServedQueues(names, self._excluded).includes(queue)

    def look_at_limits(self) -> None:
        """Let the next look be at limits, too: something may be ready under one."""
        self._look_at_limits_at = -math.inf

    def has_none_of_limits(self) -> bool:
        """Look at all limits; say whether nothing that is ready under them was to be had.

        A claim passes over rows that are locked for a moment: it may get now what it left.
        """
        with self._claiming:
            self._round = None
            while self._hand.accepting:
                # What somebody calls for meanwhile would have the looks begin again and again.
                if monotonic() >= self._slots.deadline or (self.is_awaited and self._round):
                    return False
                self.look_at_limits()
                self._look(everywhere=True)
                if not self.found_nothing or self._round is None:
                    break
            return self.found_nothing or not self._hand.accepting

    def may_find_more(self) -> bool:
        """Return whether a look may find runs once there is room for them."""
        return self.left_some or self.was_full_at_hint

    def reconcile(self) -> list[str]:
        """Hand back runs that the store says are ours and we never heard of."""
        with self._claiming:
            return self._reconcile()

    def _look(self, *, everywhere: bool = False) -> bool:
        """Ask for what there is room for; say whether all that room was filled."""
        if self.is_awaited:
            # What is new may be under a limit that has been seen.
            self._round = None
        self.is_awaited = False
        self.was_full_at_hint = False
        self.left_some = True
        if self._in_doubt:
            self._reconcile()
        limits: ClaimLimits | None = None
        looks: list[Claims] = []
        more = left_some = False
        for queue in self._in_turn():
            for lanes in self._lanes_in_turn(queue, everywhere=everywhere):
                ask = self._ask(queue, lanes)
                if ask.wants:
                    if not looks:
                        # For all: else each kind of runs would be asked for under other limits.
                        limits = self._limits()
                    claims = self._claim(ask.wants, limits)
                    more = more or is_filled(ask.wants, claims)
                    looks.append(claims)
                left_some = left_some or ask.leaves_some
        self._note_limits(looks, limits)
        self.found_nothing = not any(looks)
        # What a limit kept back is there to be had as soon as something ends.
        self.left_some = left_some or more or self._limit is not None
        return more

    def _note_limits(self, looks: list[Claims], limits: ClaimLimits | None) -> None:
        """Go on behind the limits that were seen, until all have been."""
        begun, self._round = self._round, None
        if not looks:
            return  # Whoever frees room calls.
        # All began behind the same one: the first that did not see all tells how far they came.
        seen = max(looks, key=lambda look: (look.has_more_limits, look.limit is not None))
        self._limit = seen.limit
        if limits is not None and seen.limit is not None and seen.has_more_limits:
            self._round = (begun or LimitScan(limits.after)).remaining(limits.after, seen.limit)

    def _reconcile(self) -> list[str]:
        # No claim is between the store and the hand while this lock is held.
        op = HandBackUnknown(self._worker_id, self._hand.run_ids())
        run_ids = self._store.do(op)
        self._note_claim(under_way=False)
        return list(run_ids)

    def _in_turn(self) -> Iterator[QueueLimit | None]:
        queues = self.queues
        if not queues:
            yield None
            return
        self._turn = (self._turn + 1) % len(queues)
        yield from queues[self._turn :] + queues[: self._turn]

    def _lanes_in_turn(
        self, queue: QueueLimit | None, *, everywhere: bool
    ) -> Iterator[frozenset[SlotKind]]:
        if self._left is None and (queue is None or queue.limit is None):
            put_off = self._put_off()
            yield OWN_SLOT_KINDS - {put_off}
            if everywhere or put_off in self._registry.lanes:
                yield frozenset({put_off})
        else:
            # What one lane got counts against the limit before the next one is asked.
            self._turn_of_lane = turn = (self._turn_of_lane + 1) % len(ONE_BY_ONE)
            yield from ONE_BY_ONE[turn:] + ONE_BY_ONE[:turn]

    def _put_off(self) -> SlotKind:
        """Return the lane that must not be asked together with the others this time.

        Threads and processes share slots, and hold runs are not claimed ahead: of these two lanes
        only one may count on the free slots.
        """
        self._turn_of_hold += 1
        asked, put_off = SHARING if self._turn_of_hold % 2 else SHARING[::-1]
        known = self._registry.lanes
        # One that we have no tasks for may still hold runs of before a deploy that changed theirs.
        if asked not in known and put_off in known and self._turn_of_hold % _TURNS_OF_HOLD:
            return asked
        return put_off

    def _ask(self, queue: QueueLimit | None, lanes: frozenset[SlotKind]) -> ClaimRequest:
        ask = self.room.ask(queue, lanes)
        if self._left is None:
            return ask
        # There is one lane where tasks are counted, so all wants together stay within the bound.
        wants = (want._replace(limit=min(want.limit, self._left)) for want in ask.wants)
        return ask._replace(wants=tuple(want for want in wants if want.limit > 0))

    def _ask_at_once(self) -> ClaimRequest:
        put_off = self._put_off()
        wants, leaves_some = self.room.ask(None, OWN_SLOT_KINDS - {put_off})
        return ClaimRequest(wants, leaves_some or put_off in self._registry.lanes)

    def _op(
        self, wants: tuple[Want, ...], limits: ClaimLimits | None, announcement: str | None = None
    ) -> ClaimRuns:
        # A run of a task that another engine carries is to be handed over, whatever its lane.
        names = self._registry.own_names()
        return ClaimRuns(
            self._worker_id, wants, names, self._last_queue, limits, announcement, self._excluded
        )

    def _limits(self) -> ClaimLimits | None:
        """Look at what is limited where something is; and else now and then, whether it is."""
        capacities = self._registry.capacities
        now = monotonic()
        if not capacities and self._limit is None and now < self._look_at_limits_at:
            return None
        self._look_at_limits_at = now + _LIMITS_SECONDS
        # In turn, since whoever is asked last gets nothing where there is always more of the other.
        self._limits_first = not self._limits_first
        names = self._registry.names_of
        return ClaimLimits(capacities, self._limit or "", self._limits_first, names)

    def _note_claim(self, *, under_way: bool) -> None:
        # Should it fail, whether it was committed is not known: reconcile before the next one.
        self._in_doubt = under_way
        self._slots.taken = self.claims_made + under_way

    def _claim(
        self, wants: tuple[Want, ...], limits: ClaimLimits | None, announcement: str | None = None
    ) -> Claims:
        self._note_claim(under_way=True)
        claims: Claims
        claims = self._store.do(self._op(wants, limits, announcement))
        self._take(claims)
        self._note_claim(under_way=False)
        return claims

    @property
    def is_spent(self) -> bool:
        """Whether as many runs were claimed as this worker may claim."""
        return self._left is not None and self._left <= 0

    def has_all(self) -> bool:
        """Say whether nothing is in hand, on its way to it or called for, and nothing was left."""
        if not self._claiming.acquire(blocking=False):
            return False
        try:
            took_all = self.found_nothing or not self.left_some
            is_waiting = self._in_doubt or self.is_awaited
            return took_all and self._hand.has_released_all() and not is_waiting
        finally:
            self._claiming.release()

    def _take(self, claims: Claims) -> None:
        self.claims_made += len(claims)
        self.room.note(claims)
        if not claims:
            return
        self._last_queue = claims[-1].queue
        definitions = {task: self._registry.get(task) for task in {c.task for c in claims}}
        taken = self._hand.take([(c, definitions[c.task]) for c in claims])
        if self._left is not None:
            # After the claims are in hand: a worker that has spent its tasks holds them. Before a
            # body begins: the keeper lets successors begin only the rest.
            self._left -= len(claims)
            self._slots.claimed = self.claims_made
        self._dispatch(taken)

"""What a claim asks for: how many runs of which lanes fit into the free slots."""

from collections import Counter
from typing import NamedTuple

from duly.core.concurrency_limits import slot_of
from duly.core.record import Claims
from duly.core.states import OWN_SLOT_KINDS, SlotKind
from duly.limits import CLAIM_BATCH
from duly.registry import Registry
from duly.store.ops.runs import Want
from duly.worker.inflight import LOOP, THREAD, InFlightClaims

SHARING = (SlotKind.THREAD_HOLD, SlotKind.PROCESS_HOLD)
KINDS = (
    (SlotKind.LOOP_HOLD, LOOP),
    *((lane, THREAD) for lane in SHARING),
    (SlotKind.LOOP, LOOP),
    (SlotKind.THREAD, THREAD),
    (SlotKind.PROCESS, THREAD),
)
PROCESS_SLOT_KINDS = frozenset({SlotKind.PROCESS_HOLD, SlotKind.PROCESS})
AHEAD_SLOT_KINDS = frozenset({SlotKind.LOOP, SlotKind.THREAD})
ONE_BY_ONE = tuple(frozenset({lane}) for lane in SlotKind if lane in OWN_SLOT_KINDS)


class QueueLimit(NamedTuple):
    """A queue this worker serves, and at most how many of its runs at once."""

    name: str
    limit: int | None = None


class ClaimRequest(NamedTuple):
    """What to ask for."""

    wants: tuple[Want, ...]
    leaves_some: bool
    """Whether a lane was left out, for want of room or because its turn comes later."""


NO_CLAIM = ClaimRequest((), leaves_some=True)


def is_filled(wants: tuple[Want, ...], claims: Claims) -> bool:
    """Return whether a claim got all that it may take, so that there may be more."""
    if claims.is_cut:
        return True
    if len(claims) < min(want.limit for want in wants):
        return False
    got: Counter[str] = Counter()
    # There are few lanes, and many claims.
    for lane, count in Counter(claim.lane for claim in claims).items():
        got[slot_of(lane)] += count
    return any(got[want.lane] >= want.limit for want in wants)


class FreeSlots:
    """How many more runs of each lane a worker can take."""

    def __init__(
        self,
        hand: InFlightClaims,
        registry: Registry,
        *,
        process_limit: int | None,
        one_slot: bool,
        takes_suspects: bool,
        carries: bool,
        claims_ahead: bool = True,
    ) -> None:
        self._hand = hand
        self._registry = registry
        self._process_limit = process_limit
        self._one_slot = one_slot
        self._takes_suspects = takes_suspects
        self._carries = carries
        self._ahead = AHEAD_SLOT_KINDS if claims_ahead else frozenset()
        self._suspect = ""
        """The last run that is watched alone which this worker took."""
        self._most = CLAIM_BATCH
        """The most runs of a kind that one claim asks for; few after claims of large arguments."""

    def note(self, claims: Claims) -> None:
        """Note which run of those that were taken must be watched alone, and how large they are."""
        # A claim locks, or reads, as many runs as it asks for, although it may take fewer.
        self._most = len(claims) if claims.is_cut else min(2 * self._most, CLAIM_BATCH)
        if self._takes_suspects:
            suspects = (claim.run_id for claim in claims if claim.lane == SlotKind.SUSPECT)
            self._suspect = next(suspects, self._suspect)

    def can_start(self, slot: str, queue: QueueLimit | None) -> bool:
        """Return whether a run that needs such a slot would start at once."""
        kind = dict(KINDS).get(SlotKind(slot))
        if kind is None or self._one_slot or self._carries or not self._hand.accepting:
            return False
        room = self._hand.room(kind, ahead=False)
        if queue is not None and queue.limit is not None:
            room = min(room, queue.limit - self._hand.count_in_queue(queue.name))
        return (min(room, self._for_processes()) if slot in PROCESS_SLOT_KINDS else room) > 0

    def ask(self, queue: QueueLimit | None, lanes: frozenset[SlotKind]) -> ClaimRequest:
        """Return what to ask for of some lanes of a queue, or of all queues."""
        if self._carries:
            return ClaimRequest((), leaves_some=False)
        name = None if queue is None else queue.name
        ceiling = self._most
        if queue is not None and queue.limit is not None:
            ceiling = min(ceiling, queue.limit - self._hand.count_in_queue(queue.name))
        if self._one_slot:
            alone = SlotKind.SUSPECT in lanes and self._hand.is_empty()
            return ClaimRequest((Want(name, SlotKind.SUSPECT, 1),) if alone else (), not alone)
        wants = []
        leaves_some = False
        processes = self._for_processes()
        for lane, kind in KINDS:
            if lane not in lanes:
                continue
            # A hold run starts at once or is not claimed: it gets free slots, nothing ahead.
            room = min(self._hand.room(kind, ahead=lane in self._ahead), ceiling)
            if lane in PROCESS_SLOT_KINDS:
                room = min(room, processes)
                processes -= room if lane in self._registry.lanes else 0
            if room > 0:
                wants.append(Want(name, lane, room))
            else:
                leaves_some = True
        if SlotKind.SUSPECT in lanes and self._takes_suspects:
            if ceiling > 0 and self._hand.get(self._suspect) is None:
                wants.append(Want(name, SlotKind.SUSPECT, 1))
            else:
                leaves_some = True
        return ClaimRequest(tuple(wants), leaves_some)

    def _for_processes(self) -> int:
        limit = self._process_limit
        return CLAIM_BATCH if limit is None else limit - self._hand.count_in_processes()

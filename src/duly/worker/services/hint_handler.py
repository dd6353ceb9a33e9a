"""Which worker looks for the runs that a hint names, and when.

Every worker hears every hint. If all of them looked, one enqueue would cost as many claims as
there are idle workers. So each worker computes its own rank among the live workers that serve the
place of the run, by a hash of the hint and the worker. As many workers as there are runs look at
once. The next ones look a little later, unless a worker has announced that it took the runs.

A worker without a free slot passes the hint on at once. A worker that stays silent although its
rank is low (because it is frozen, or gone) costs the first hint a few milliseconds. The worker that
takes the run in its place names it, and all workers rank it last for some time.

Ranks may be wrong, for example while workers start or stop. Then a run costs more claims than
needed, or starts later, at the next poll at the latest.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple
from zlib import crc32

from duly.clock import monotonic
from duly.core.concurrency_limits import slot_of
from duly.errors import StoreError
from duly.registry import Registry
from duly.store.hints import ClaimNotice, Hint, HintPlace, Peer, encode, new_hint
from duly.store.protocol import Store
from duly.worker.claimer import Claimer

_DELAYS = (0.0, 0.01, 0.03, 0.1, 0.25, 0.5, 1.0)
"""Seconds by rank; higher ranks leave the runs to the poll."""
_PEEKERS = 3
"""How many workers find out why no worker serves a run."""
_ANSWER_SECONDS = 0.003
"""Where the first in line takes longer than this, the delays are longer by the same factor."""
_MOST_SLOWER = 10.0
_SMOOTHING = 0.2
_PEEK_SECONDS = 0.02
"""After a look that found nothing, for a word of the worker that took the runs."""
_BUSY_SECONDS = 15.0
"""For how long a worker ranks last that had no room."""
_SILENT_SECONDS = 60.0
"""For how long a worker ranks last that was silent; by then a frozen one has lost its lease."""
_ANNOUNCE_SECONDS = 0.01
_PASS_SECONDS = 0.02
"""Between two messages of a kind: commits that notify wait for one another, in all processes."""
_REMEMBERED = 256
_FIRST_READ_SECONDS, _READ_SECONDS = 0.5, 10.0
_READ_SECONDS_PER_PEER = 0.05
"""So that reading the workers costs a large fleet no more per worker than a small one."""
_IDLE_PAUSE = 3600.0


class _PlannedClaim(NamedTuple):
    """A look that this worker takes at some time, unless the runs are taken before."""

    hint: Hint
    heard_at: float
    due: float
    peeks: bool = False
    """Whether it only finds out why no worker takes the runs."""
    silent: tuple[str, ...] = ()
    """Workers that should look before."""


class HintHandler:
    """A service: looks for the runs that hints name, when it is this worker's turn."""

    name = "hinted"

    def __init__(
        self,
        store: Store,
        registry: Registry,
        claimer: Claimer,
        worker_id: str,
        look_for_runs: Callable[[], None],
    ) -> None:
        self._store = store
        self._registry = registry
        self._claimer = claimer
        self._worker_id = worker_id
        self._look_for_runs = look_for_runs
        self.hurry: Callable[..., None] = lambda within: None  # noqa: ARG005
        """Makes this service due within some seconds."""
        self.peek: Callable[[], None] = lambda: None
        """Finds out why ready runs are not taken."""
        self.reread: Callable[[], None] = lambda: None
        """Makes the reader due soon."""
        self.reader = PeerReader(store, self.know)
        self._mutex = threading.Lock()
        self._tasks: frozenset[str] = frozenset()
        self._peers: Mapping[str, Peer] = {}
        self._serving: dict[HintPlace, tuple[str, ...]] = {}
        self._busy_until: dict[str, float] = {}
        self._pending: dict[str, _PlannedClaim] = {}
        self._over: OrderedDict[str, None] = OrderedDict()
        """Hints whose runs are taken, the latest last."""
        self._answer_seconds = 0.0
        """How long after a hint the first in line has its runs, by the mean of the latest ones."""
        self._announces_at = 0.0
        self._passes_at = 0.0

    def know(self, peers: Mapping[str, Peer]) -> None:
        """Note which workers are live."""
        with self._mutex:
            self._peers = {key: peer for key, peer in peers.items() if key != self._worker_id}
            self._serving.clear()
            now = monotonic()
            busy = self._busy_until.items()
            self._busy_until = {key: until for key, until in busy if until > now}

    def hear(self, said: Hint | ClaimNotice) -> None:
        """Take in a message; called by the listener, and by callers that enqueue here."""
        now = monotonic()
        with self._mutex:
            is_taken = isinstance(said, ClaimNotice)
            until = now + (_SILENT_SECONDS if is_taken else _BUSY_SECONDS)
            self._busy_until.update(dict.fromkeys(said.busy, until))
            if isinstance(said, ClaimNotice):
                self._busy_until.pop(said.worker_id, None)
                look = self._pending.get(next(iter(said.ids), ""))
                if look is not None and not said.busy:
                    self._learn(now - look.heard_at)
                self._note_over(said.ids)
                if said.worker_id not in self._peers and said.worker_id != self._worker_id:
                    self.reread()
                return
            if said.id in self._over or self._worker_id in said.busy:
                return
            is_mine = self._serves(said.place)
            others = self._serving_peers(said.place)
            if not is_mine and others:
                return
            # If no worker serves the place, some of all workers should find out why.
            ahead = self._ahead(said, others if is_mine else tuple(self._peers), now)
        if is_mine and not self._has_room(said.place):
            # If there are no more workers than runs, all of them look anyway.
            self._leave_to_others(said, passes_on=len(ahead) < said.runs <= len(others))
            return
        rank = max(0, len(ahead) - (said.runs - 1))
        silent = tuple(ahead) if said.runs == 1 else ()
        if said.is_near and is_mine:
            rank, silent = 0, ()
        if rank < (len(_DELAYS) if is_mine else _PEEKERS):
            due = now + _DELAYS[rank] * self._slower()
            self._plan(_PlannedClaim(said, now, due, not is_mine, silent))

    def tick(self) -> float:
        """Look for the runs of hints whose time has come."""
        now = monotonic()
        with self._mutex:
            due = [look for look in self._pending.values() if look.due <= now]
            for look in due:
                del self._pending[look.hint.id]
        if any(look.peeks for look in due):
            self._claimer.look_at_limits()
            self.peek()
        looks: dict[HintPlace, list[_PlannedClaim]] = {}
        for look in due:
            if not look.peeks:
                looks.setdefault(look.hint.place, []).append(look)
        for place, same in looks.items():
            self._look(place, same)
        with self._mutex:
            soonest = min((look.due for look in self._pending.values()), default=None)
        return _IDLE_PAUSE if soonest is None else max(0.0, soonest - monotonic())

    def _look(self, place: HintPlace, looks: list[_PlannedClaim]) -> None:
        if not self._has_room(place):
            for look in looks:
                self._leave_to_others(look.hint, passes_on=True)
            return
        try:
            taken, is_filled = self._claimer.claim_for_hint(place, self._announcement(looks))
        except StoreError:
            # The claimer finds out what became of the claim, and tries again in its own time.
            self._look_for_runs()
            return
        now = monotonic()
        with self._mutex:
            for look in looks:
                if not look.silent:
                    self._learn(now - look.heard_at)
        if not taken:
            # Unless another worker was faster, a limit or a paused queue keeps the runs back.
            until = now + _PEEK_SECONDS * self._slower()
            for look in looks:
                self._plan(look._replace(due=until, peeks=True))
            return
        with self._mutex:
            self._busy_until.pop(self._worker_id, None)
            self._note_over([look.hint.id for look in looks])
        if is_filled:
            self._pass_rest_on(place, sum(look.hint.runs for look in looks) - len(taken))

    def _pass_rest_on(self, place: HintPlace, runs: int) -> None:
        """Leave runs to others that did not fit, and look again if there is room for more."""
        if runs > 0 and self._peers:
            self._store.pass_on(new_hint(place, runs, busy=(self._worker_id,)))
        if self._has_room(place):
            self._look_for_runs()

    def _announcement(self, looks: list[_PlannedClaim]) -> str | None:
        """Return what tells other workers that they need not look; None if that is not worth it."""
        now = monotonic()
        if not self._peers or now < self._announces_at:
            return None
        self._announces_at = now + _ANNOUNCE_SECONDS
        ids = tuple(look.hint.id for look in looks)
        silent = dict.fromkeys(key for look in looks for key in look.silent)
        return encode(ClaimNotice(ids, self._worker_id, tuple(silent)))

    def _leave_to_others(self, hint: Hint, *, passes_on: bool) -> None:
        """Pass the hint on if others count on this worker; look again when a slot is free."""
        self._claimer.was_full_at_hint = True
        if self._has_room(hint.place):
            # A slot became free meanwhile, and the flag may have come too late for it.
            self._look_for_runs()
        now = monotonic()
        with self._mutex:
            others = self._serving_peers(hint.place)
            is_of_use = any(not self._is_busy(key, now) for key in others)
            if not passes_on or not is_of_use or now < self._passes_at:
                return
            self._passes_at = now + _PASS_SECONDS
        self._store.pass_on(hint._replace(busy=(*hint.busy, self._worker_id)))

    def _plan(self, look: _PlannedClaim) -> None:
        with self._mutex:
            if look.hint.id in self._over:
                return
            self._pending[look.hint.id] = look
        self.hurry(within=max(0.0, look.due - monotonic()))

    def _has_room(self, place: HintPlace) -> bool:
        if self._claimer.is_spent:
            return False
        queues = (queue for queue in self._claimer.queues if queue.name == place.queue)
        return self._claimer.room.can_start(slot_of(place.lane), next(queues, None))

    # -- ranks; with the mutex held --

    def _ahead(self, hint: Hint, others: Collection[str], now: float) -> list[str]:
        """Return the workers that look before this one."""
        own = self._key(hint, self._worker_id, now)
        return [key for key in others if self._key(hint, key, now) < own]

    def _key(self, hint: Hint, worker_id: str, now: float) -> tuple[bool, int]:
        # The factor mixes the bits: sums of texts that end alike differ by a constant alone.
        mixed = crc32(f"{hint.id} {worker_id}".encode()) * 2654435761 % 2**32
        return self._is_busy(worker_id, now), mixed

    def _is_busy(self, worker_id: str, now: float) -> bool:
        return self._busy_until.get(worker_id, 0.0) > now

    def _serving_peers(self, place: HintPlace) -> tuple[str, ...]:
        found = self._serving.get(place)
        if found is None:
            if len(self._serving) >= _REMEMBERED:
                self._serving.clear()
            found = tuple(key for key, peer in self._peers.items() if peer.serves(place))
            self._serving[place] = found
        return found

    def _serves(self, place: HintPlace) -> bool:
        if place.task not in self._tasks:
            self._tasks = frozenset(self._registry.own_names())
        return self._claimer.serves(place.queue) and place.task in self._tasks

    def _learn(self, seconds: float) -> None:
        self._answer_seconds += _SMOOTHING * (seconds - self._answer_seconds)

    def _slower(self) -> float:
        return min(max(1.0, self._answer_seconds / _ANSWER_SECONDS), _MOST_SLOWER)

    def _note_over(self, ids: Collection[str]) -> None:
        for key in ids:
            self._over[key] = None
            self._pending.pop(key, None)
        while len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)


class PeerReader:
    """A service: reads now and then which other workers are live."""

    name = "peers"

    def __init__(self, store: Store, know: Callable[[Mapping[str, Peer]], None]) -> None:
        self._store = store
        self._know = know
        self._pause = _FIRST_READ_SECONDS

    def tick(self) -> float:
        """Read once."""
        peers = self._store.read_peers()
        self._know(peers)
        # Workers that are started together soon know each other.
        self._pause = min(2 * self._pause, _READ_SECONDS)
        return max(self._pause, _READ_SECONDS_PER_PEER * len(peers))

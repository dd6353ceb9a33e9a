"""The claims a worker has in hand, and how far each has come.

Claims are unstarted, then running, then ended, and leave when their end is durable. Starts are
marked in the shared slots before the body begins, and the marks stay until the end is recorded.
"""

import threading
from collections.abc import Callable, Iterable

from duly.clock import monotonic
from duly.core.record import Claim
from duly.limits import TRANSACTION_BYTES
from duly.registry import Definition
from duly.worker.start_marks import StartMarks

LOOP, THREAD = "loop", "thread"
_SMOOTHING = 0.1
_AHEAD_SECONDS = 0.05


class InFlightClaim:
    """One claim in hand."""

    __slots__ = (
        "cancel",
        "claim",
        "claimed_at",
        "definition",
        "ended",
        "kind",
        "released",
        "slot",
        "started_at",
    )

    def __init__(self, claim: Claim, definition: Definition, claimed_at: float) -> None:
        self.claim = claim
        self.definition = definition
        self.kind = LOOP if definition.executor == LOOP else THREAD
        self.claimed_at = claimed_at
        self.started_at: float | None = None
        self.ended = False
        """Whether its body has; its end may not be durable yet."""
        self.slot = -1
        self.cancel: str | None = None
        """Why the body is being ended from outside: requested, stopped or lost."""
        self.released: threading.Event | None = None
        """Set when it leaves the hand, if somebody waits for that."""

    @property
    def overdue_at(self) -> float:
        """When the attempt's timeout strikes (monotonic)."""
        if self.started_at is None or self.definition.timeout is None:
            return float("inf")
        return self.started_at + self.definition.timeout


class InFlightClaims:
    """All claims in hand; every method may be called from any thread."""

    def __init__(self, slots: StartMarks, limits: dict[str, int], batch: int) -> None:
        self._slots = slots
        self._limits = limits
        self._batch = batch
        self._lock = threading.Lock()
        self._held: dict[str, InFlightClaim] = {}
        self._leaving: dict[str, InFlightClaim] = {}
        """Withdrawn, but to the store they are ours until that is recorded."""
        self._free_slots = list(range(slots.count - 1, -1, -1))
        self._busy = dict.fromkeys(limits, 0)
        self._mean_seconds = dict.fromkeys(limits, 1.0)
        self._characters = 0
        """Of the arguments of all claims in hand."""
        self.accepting = True
        self.changed: Callable[[], None] = lambda: None
        """Called when room has opened or the hand has emptied."""

    def take(self, claims: Iterable[tuple[Claim, Definition]]) -> list[InFlightClaim]:
        """Hold new claims, not yet started."""
        now = monotonic()
        taken = [InFlightClaim(claim, definition, now) for claim, definition in claims]
        with self._lock:
            for held in taken:
                claim = held.claim
                replaced = self._held.get(claim.run_id)
                if replaced is not None:
                    # The run was queued again before its earlier claim was released.
                    self._characters -= len(replaced.claim.arguments)
                self._held[claim.run_id] = held
                self._characters += len(claim.arguments)
            kinds = [held.kind for held in taken]
            for kind in self._busy:
                self._busy[kind] += kinds.count(kind)
        return taken

    def begin(self, held: InFlightClaim) -> bool:
        """Mark a start, unless the lease is over or the worker no longer starts anything."""
        claim = held.claim
        with self._lock:
            if (
                not self.accepting
                or self._held.get(claim.run_id) is not held
                or not self._free_slots
            ):
                return False
            held.slot = slot = self._free_slots.pop()
        timeout = held.definition.timeout
        if timeout is None:
            overdue_at, retry_after = _NEVER, -1.0
        else:
            overdue_at, retry_after = monotonic() + timeout, _retry_after(held)
        self._slots.start(slot, claim.run_id, claim.claim_number, overdue_at, retry_after)
        # Looked at behind the mark: whoever froze before it and was recovered as unstarted has
        # lost the run.
        held.started_at = now = monotonic()
        if now >= self._slots.deadline:
            self._unmark(held)
            return False
        return True

    def _unmark(self, held: InFlightClaim) -> None:
        with self._lock:
            self._slots.clear(held.slot)
            self._free_slots.append(held.slot)
            held.slot = -1
            held.started_at = None

    def end(self, held: InFlightClaim, seconds: float) -> None:
        """Note that a body has ended; its slot for bodies is free, its mark stays."""
        self.mark_end(held)
        self.make_room(held.kind, 1, seconds)

    def mark_end(self, held: InFlightClaim) -> None:
        """Mark that a body has ended; `make_room` must follow, for several at once."""
        held.ended = True
        self._slots.end(held.slot)

    def make_room(self, kind: str, count: int, seconds: float) -> None:
        """Note that bodies have ended and took so many seconds together: others may begin."""
        with self._lock:
            self._busy[kind] -= count
            mean = self._mean_seconds[kind]
            weight = 1.0 - (1.0 - _SMOOTHING) ** count
            self._mean_seconds[kind] = mean + weight * (seconds / count - mean)

    def release(self, gone: Iterable[InFlightClaim]) -> None:
        """Let go of claims whose end is durable, or that are lost."""
        in_hand = self._held
        with self._lock:
            for held in gone:
                run_id = held.claim.run_id
                if in_hand.get(run_id) is held:
                    del in_hand[run_id]
                    self._characters -= len(held.claim.arguments)
                elif self._leaving.get(run_id) is held:
                    del self._leaving[run_id]
                    self._characters -= len(held.claim.arguments)
                if held.slot >= 0:
                    self._slots.clear(held.slot)
                    self._free_slots.append(held.slot)
                    held.slot = -1
                if held.released is not None:
                    held.released.set()
        self.changed()

    def withdraw(self, which: Callable[[InFlightClaim], bool]) -> list[InFlightClaim]:
        """Take unstarted claims out of the hand, so that they can be handed back."""
        with self._lock:
            # One that has a slot is about to start.
            found = [h for h in self._held.values() if h.slot < 0 and which(h)]
            for held in found:
                self._leaving[held.claim.run_id] = self._held.pop(held.claim.run_id)
                self._busy[held.kind] -= 1
                if held.released is not None:
                    held.released.set()
        return found

    def withdraw_stale(self, claimed_before: float) -> list[InFlightClaim]:
        """Take claims out of the hand that have waited since then, and claim no more ahead."""
        stale = self.withdraw(lambda held: held.claimed_at < claimed_before)
        with self._lock:
            for kind in {held.kind for held in stale}:
                # As if all bodies were that long, until enough of them have ended sooner.
                long = 2 * _AHEAD_SECONDS * self._limits[kind]
                self._mean_seconds[kind] = max(self._mean_seconds[kind], long)
        return stale

    def room(self, kind: str, *, ahead: bool) -> int:
        """Return how many more claims of a kind may be taken.

        Claiming ahead pays when bodies are short; behind long ones the claims would only wait
        here while another worker is idle. Large arguments are not claimed ahead: they take memory.
        """
        with self._lock:
            extra = 0
            busy = in_flight = self._busy[kind]
            if ahead and self._characters < TRANSACTION_BYTES:
                mean = self._mean_seconds[kind]
                long = self._count_long(kind, max(_AHEAD_SECONDS, 2 * mean))
                in_flight -= long
                per_slot = _AHEAD_SECONDS / max(mean, 1e-6)
                extra = min(self._batch, int(per_slot * max(0, self._limits[kind] - long)))
            # Marks are finite: ended bodies whose settle is under way still occupy some.
            marks = len(self._free_slots) - sum(self._busy.values())
            room = max(0, min(self._limits[kind] + extra - busy, marks))
            # While plenty is in hand, small claims would only cost transactions.
            return 0 if ahead and room < self._batch // 4 < in_flight else room

    def _count_long(self, kind: str, seconds: float) -> int:
        """Return how many bodies have run for longer than that: they may not end soon either."""
        began_before = monotonic() - seconds
        count = 0
        # Claims are started in the order in which they were taken, or nearly so.
        for held in self._held.values():
            if held.kind == kind and not held.ended:
                if held.started_at is None:
                    break
                count += held.started_at < began_before
        return count

    def get(self, run_id: str) -> InFlightClaim | None:
        """Return a claim by its run."""
        return self._held.get(run_id)

    def run_ids(self) -> frozenset[str]:
        """Return all runs in hand, those on their way out included."""
        with self._lock:
            return frozenset(self._held) | frozenset(self._leaving)

    def started(self) -> list[InFlightClaim]:
        """Return the claims whose body has begun, ended ones that are not recorded included."""
        with self._lock:
            return [held for held in self._held.values() if held.started_at is not None]

    def count_in_queue(self, queue: str) -> int:
        """Return how many claims in hand come from a queue."""
        with self._lock:
            return sum(held.claim.queue == queue for held in self._held.values())

    def count_in_processes(self) -> int:
        """Return how many claims in hand are for bodies that run in processes of their own."""
        with self._lock:
            return sum(held.definition.executor == "process" for held in self._held.values())

    def is_empty(self) -> bool:
        """Say whether nothing is in hand."""
        return not self._held

    def has_released_all(self) -> bool:
        """Say whether nothing is in hand, nor on its way out of it."""
        return not self._held and not self._leaving

    def __len__(self) -> int:
        return len(self._held)


_NEVER = float("inf")


def _retry_after(held: InFlightClaim) -> float:
    """Return after how many seconds a timeout tries again; negative if it does not."""
    used, retry = held.claim.retries_used, held.definition.retry
    return retry.delay(used, 0.5) if used < retry.limit else -1.0

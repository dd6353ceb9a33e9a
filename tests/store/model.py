"""The expected behaviour of a store, in plain dictionaries: the real stores are compared with it.

A run is in one place: `ready` (claims see it), `waiting`, `running` or `history`. Nothing here is
fast, bounded or safe among threads. The model is only short enough to be checked by reading.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from duly.core.record import ClaimedRun
from duly.core.states import DEAD, FINAL, State
from duly.core.verdict import Finish, Requeue
from duly.store.ops.operators import DiscardDead, RescheduleRun, RetriedRun, RetryRun
from duly.store.ops.recovery import HandBackUnknown, Recover, RecoverOrphans
from duly.store.ops.runs import Accepted, ClaimRuns, Enqueue, Settle, Settled
from duly.store.ops.upkeep import Prune, RegisterWorker, Ticked

BY_OTHERS = ("lost", "handed_back", "stopped")
"""Outcomes of attempts that the worker itself does not record."""


@dataclass
class Run:
    """One run; the fields that are compared with the store's record have the record's names."""

    id: str
    task: str
    queue: str
    lane: str
    priority: int
    arguments: str
    tags: str | None
    key: str | None
    created_at: int
    due_at: int
    expires_at: int | None
    place: str
    state: str = "queued"
    cause: str | None = None
    generation: int = 1
    claim_number: int = 0
    attempt: int = 1
    retries_used: int = 0
    crashes: int = 0
    finished_at: int | None = None
    worker_id: str | None = None
    cancel_requested: bool = False
    parked: str | None = None
    result: str | None = None
    error: str | None = None
    attempts: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    """claim_number -> (generation, attempt, outcome) of every recorded attempt."""

    def place_in_line(self) -> tuple[int, int, str]:
        """Return the sort key of a run in its queue."""
        return (-self.priority, self.due_at, self.id)


@dataclass
class HeldKey:
    """A key and the run it belongs to."""

    run_id: str
    fingerprint: str
    ttl: int | None
    active_only: bool
    expires_at: int | None = None


@dataclass
class Worker:
    """A worker that was registered once."""

    tasks: tuple[str, ...]
    live: bool = True
    stopped_at: int | None = None


class ModelStore:
    """The model of a store. The caller sets `now` before each op."""

    def __init__(self) -> None:
        self.now = 0
        self.runs: dict[str, Run] = {}
        self.keys: dict[tuple[str, str], HeldKey] = {}
        self.paused: set[str] = set()
        self.workers: dict[str, Worker] = {}

    # -- in and out --

    def enqueue(self, op: Enqueue) -> Accepted:
        """Accept a run unless its key belongs to another."""
        if op.key is not None:
            held = self.keys.get((op.task, op.key.text))
            if held is not None and (held.expires_at is None or held.expires_at > self.now):
                conflict = op.key.differs_from(held.fingerprint)
                return Accepted(held.run_id, new=False, conflict=conflict)
            self.keys[op.task, op.key.text] = HeldKey(
                op.run_id, op.key.fingerprint, op.key.ttl, op.key.active_only
            )
        due_at = self.now + op.delay if op.at is None else op.at
        self.runs[op.run_id] = Run(
            op.run_id,
            op.task,
            op.queue,
            op.lane,
            op.priority,
            op.arguments,
            op.tags,
            None if op.key is None else op.key.text,
            created_at=self.now,
            due_at=due_at,
            expires_at=None if op.expires is None else self.now + op.expires,
            place="ready" if due_at <= self.now else "waiting",
        )
        return Accepted(op.run_id)

    def claim(self, op: ClaimRuns) -> list[tuple[str, int]]:
        """Return (run, claim_number) of the claimed runs, in order."""
        worker = self.workers.get(op.worker_id)
        if worker is None or not worker.live:
            return []
        queues = {run.queue for run in self.runs.values() if run.place == "ready"} - self.paused
        turn = sorted(queues, key=lambda queue: (queue <= op.after_queue, queue))
        taken: list[Run] = []
        for want in op.wants:
            in_line: list[Run] = []
            for queue in turn:
                if want.queue in {None, queue}:
                    in_line += sorted(self._claimable(queue, want.lane, op.tasks), key=_in_line)
            for run in in_line[: want.limit]:
                run.place = run.state = "running"
                run.claim_number += 1
                run.worker_id = op.worker_id
                taken.append(run)
        return [(run.id, run.claim_number) for run in sorted(taken, key=_in_line)]

    def _claimable(self, queue: str, lane: str, tasks: Sequence[str]) -> list[Run]:
        return [
            run
            for run in self.runs.values()
            if run.place == "ready"
            and (run.queue, run.lane) == (queue, lane)
            and run.task in tasks
            and (run.expires_at is None or run.expires_at > self.now)
        ]

    def holds(self, run_id: str, claim_number: int) -> bool:
        """Return whether a claim is in force."""
        run = self.runs.get(run_id)
        return run is not None and run.state == "running" and run.claim_number == claim_number

    def settle(self, op: Settle) -> Settled:
        """End an attempt if its claim is in force."""
        run = self.runs.get(op.run_id)
        if run is None or not self.holds(op.run_id, op.claim_number):
            recorded = None if run is None else run.attempts.get(op.claim_number)
            known = recorded is not None and (
                recorded[2] == op.outcome or recorded[2] not in BY_OTHERS
            )
            return Settled.DONE if known else Settled.CLAIM_LOST
        record = (run.generation, run.attempt, op.outcome)
        match op.verdict:
            case Finish(state, cause, result):
                run.attempts[op.claim_number] = record
                run.result, run.error = result, None if op.error is None else str(op.error)
                self._end(run, state, cause)
            case Requeue() if run.cancel_requested:
                return Settled.CANCEL_REQUESTED
            case Requeue() as again:
                if again.recorded:
                    run.attempts[op.claim_number] = record
                self._requeue(run, again)
        return Settled.DONE

    def _requeue(self, run: Run, again: Requeue) -> None:
        after = int(again.after * 1_000_000)
        run.state, run.worker_id = "queued", None
        run.attempt, run.retries_used = again.attempt, again.retries_used
        run.crashes, run.lane = again.crashes, again.lane
        run.place = "waiting" if after > 0 else "ready"
        if after > 0:
            run.due_at = self.now + after
        if again.recorded:
            run.expires_at = None

    def _end(self, run: Run, state: str, cause: str | None) -> None:
        run.place, run.state, run.cause, run.finished_at = "history", str(state), cause, self.now
        run.cancel_requested, run.parked = False, None
        held = self._key_of(run)
        if held is not None:
            if held.active_only:
                held.expires_at = self.now
            elif held.ttl is not None:
                held.expires_at = self.now + held.ttl

    def _key_of(self, run: Run) -> HeldKey | None:
        held = None if run.key is None else self.keys.get((run.task, run.key))
        return held if held is not None and held.run_id == run.id else None

    # -- workers --

    def register(self, op: RegisterWorker, tasks: tuple[str, ...]) -> None:
        """Make a new worker live. A live worker may register again with other tasks."""
        worker = self.workers.setdefault(op.worker_id, Worker(tasks))
        if worker.live:
            worker.tasks = tasks

    def recover(self, op: Recover) -> list[str]:
        """Mark a worker as dead and settle the runs that it holds."""
        worker = self.workers.get(op.worker_id)
        if worker is not None and worker.live:
            worker.live, worker.stopped_at = False, self.now
        return self._settle_held(
            [run for run in self._running() if run.worker_id == op.worker_id], op.judge
        )

    def recover_orphans(self, op: RecoverOrphans) -> list[str]:
        """Settle the runs of workers that are not live. The limit is assumed not to be reached."""
        live = {worker_id for worker_id, worker in self.workers.items() if worker.live}
        return self._settle_held(
            [run for run in self._running() if run.worker_id not in live], op.judge
        )

    def hand_back_unknown(self, op: HandBackUnknown) -> list[str]:
        """Hand back, uncharged, the runs that a worker does not know it holds."""
        unknown = [
            run
            for run in self._running()
            if run.worker_id == op.worker_id and run.id not in op.held
        ]
        return self._settle_held(unknown, _handed_back)

    def _running(self) -> list[Run]:
        return [run for run in self.runs.values() if run.state == "running"]

    def _settle_held(self, runs: list[Run], judge: Callable[[ClaimedRun], Any]) -> list[str]:
        for run in runs:
            held = ClaimedRun(
                run.id,
                run.claim_number,
                run.task,
                run.lane,
                run.attempt,
                run.retries_used,
                run.crashes,
                run.key is not None,
                run.cancel_requested,
                0,
            )
            outcome, verdict, error = judge(held)
            self.settle(Settle(run.id, run.claim_number, outcome, verdict, 0, error))
        return sorted(run.id for run in runs)

    # -- upkeep --

    def tick(self) -> Ticked:
        """Un-park, promote, park, expire. The limit is assumed not to be reached."""
        registered = {
            task for worker in self.workers.values() if worker.live for task in worker.tasks
        }
        waiting = [run for run in self.runs.values() if run.place == "waiting"]
        for run in waiting:
            back = (run.parked == "paused" and run.queue not in self.paused) or (
                run.parked == "unregistered" and run.task in registered
            )
            if back:
                run.parked = None
        promoted = [run for run in waiting if run.parked is None and run.due_at <= self.now]
        for run in promoted:
            run.place = "ready"
        parked = 0
        for run in self.runs.values():
            if run.place == "ready":
                if run.queue in self.paused:
                    run.parked = "paused"
                elif run.task not in registered:
                    run.parked = "unregistered"
                if run.parked is not None:
                    run.place = "waiting"
                    parked += 1
        expired = [
            run
            for run in self.runs.values()
            if run.state == "queued" and run.expires_at is not None and run.expires_at <= self.now
        ]
        for run in expired:
            self._end(run, State.CANCELLED, "expired")
        due = [
            run.due_at
            for run in self.runs.values()
            if run.place == "waiting" and run.parked is None
        ]
        next_due_in = min(due) - self.now if due else None
        return Ticked(len(promoted), parked, len(expired), next_due_in)

    def prune(self, op: Prune) -> int:
        """Delete runs that ended long ago, and keys and workers whose time has passed."""
        before = self.now - op.older_than
        old = [
            run.id
            for run in self.runs.values()
            if run.finished_at is not None
            and run.finished_at < before
            and not any(
                held.run_id == run.id and (held.expires_at is None or held.expires_at > self.now)
                for held in self.keys.values()
            )
        ]
        for run_id in old:
            del self.runs[run_id]
        self.keys = {
            name: held
            for name, held in self.keys.items()
            if held.expires_at is None or held.expires_at > self.now
        }
        self.workers = {
            worker_id: worker
            for worker_id, worker in self.workers.items()
            if worker.stopped_at is None or worker.stopped_at >= before
        }
        return len(old)

    # -- operators --

    def cancel(self, run_id: str, reason: str) -> str | None:
        """End a queued run, record the request for a running one, and do not change a final one."""
        run = self.runs.get(run_id)
        if run is None:
            return None
        if run.state in FINAL:
            return run.state
        if run.state == "running":
            run.cancel_requested = True
            return "requested"
        run.error = reason or None
        self._end(run, State.CANCELLED, "requested")
        return "cancelled"

    def reschedule(self, op: RescheduleRun) -> tuple[bool, str | None]:
        """Change when and in which queue a queued run starts; return whether, and its state."""
        run = self.runs.get(op.run_id)
        if run is None or run.state != "queued":
            return False, None if run is None else run.state
        due_at = run.due_at if op.delay is None else self.now + op.delay
        if due_at <= self.now:
            due_at = min(due_at, run.due_at)
        if run.expires_at is not None and run.expires_at <= max(due_at, self.now):
            return False, "queued"
        run.due_at, run.parked = due_at, None
        run.place = "ready" if due_at <= self.now else "waiting"
        run.queue = op.queue or run.queue
        run.priority = run.priority if op.priority is None else op.priority
        return True, "queued"

    def redrive(self, op: RetryRun) -> RetriedRun:
        """Queue a final run again in its next generation."""
        run = self.runs.get(op.run_id)
        if run is None:
            return RetriedRun(done=False, state=None)
        wanted = op.generation in {None, run.generation}
        if run.state not in FINAL or run.state not in op.states or not wanted:
            return RetriedRun(done=False, state=run.state)
        known = None if run.key is None else self.keys.get((run.task, run.key))
        if known is not None and known.run_id != run.id:
            other = self.runs.get(known.run_id)
            if other is not None and other.state not in FINAL:
                return RetriedRun(done=False, state=other.state, held_by=other.id)
        run.place, run.state, run.cause = "waiting", "queued", None
        run.generation += 1
        run.attempt, run.retries_used, run.crashes = 1, 0, 0
        run.due_at, run.expires_at, run.finished_at = self.now + op.delay, None, None
        run.worker_id = run.result = run.error = None
        run.lane = op.lane or run.lane
        run.arguments = op.arguments or run.arguments
        self._hold_key_again(run)
        return RetriedRun(done=True, state="queued")

    def _hold_key_again(self, run: Run) -> None:
        held = self._key_of(run)
        known = None if run.key is None else self.keys.get((run.task, run.key))
        if held is not None:
            held.expires_at = None
        elif run.key is not None and (
            known is None or (known.expires_at is not None and known.expires_at <= self.now)
        ):
            self.keys[run.task, run.key] = HeldKey(run.id, "", None, active_only=True)

    def discard(self, op: DiscardDead) -> RetriedRun:
        """End a dead letter as cancelled."""
        run = self.runs.get(op.run_id)
        if run is None or run.state not in DEAD:
            return RetriedRun(done=False, state=None if run is None else run.state)
        run.state, run.cause = "cancelled", "discarded"
        return RetriedRun(done=True, state="cancelled")

    def reset_key(self, task: str, key: str) -> bool:
        """Forget a key."""
        return self.keys.pop((task, key), None) is not None


def _in_line(run: Run) -> tuple[int, int, str]:
    return run.place_in_line()


def _handed_back(run: ClaimedRun) -> tuple[str, Finish | Requeue, None]:
    if run.cancel_requested:
        return "handed_back", Finish(State.CANCELLED, "requested"), None
    again = Requeue(0.0, run.attempt, run.retries_used, run.crashes, run.lane, recorded=False)
    return "handed_back", again, None

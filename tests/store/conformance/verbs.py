"""Small functions with which the tests of this folder read as sentences."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from duly.carrier import CarrierMessage
from duly.clock import MICROSECONDS, new_id
from duly.core.outcome import ErrorText, Lost
from duly.core.record import Claim, ClaimedRun, RunRecord
from duly.core.states import State
from duly.core.verdict import UNKNOWN_POLICY, AttemptState, Finish, Requeue, decide, describe
from duly.store.ops.carriers import ClaimCarried, HandOver
from duly.store.ops.operators import Cancel, PauseQueue, RetriedRun, RetryRun
from duly.store.ops.recovery import Recover
from duly.store.ops.runs import Accepted, ClaimRuns, Enqueue, Key, Settle, Settled, Want
from duly.store.ops.upkeep import RegisterWorker, Tick, Ticked
from duly.store.reads import RunFilter

TASK = "shop:send"
OTHER_TASK = "shop:bill"
TASKS = (TASK, OTHER_TASK)
LANE = "thread"
ACTOR = "tester"
WORKER = "00000000-0000-7000-8000-00000000aaaa"
OTHER_WORKER = "00000000-0000-7000-8000-00000000bbbb"
UNKNOWN_RUN = "00000000-0000-7000-8000-00000000dead"
BOOM = ErrorText("ValueError", "boom", "Traceback: boom", "boom-print")
SECOND = MICROSECONDS
MINUTE = 60 * SECOND
HOUR_SECONDS = 3600.0
TIMEOUT = 30.0
"""Seconds after which an event that should happen at once is considered missing."""
DAY_SECONDS = 24 * HOUR_SECONDS


# -- enqueueing --


def order(**options: Any) -> Enqueue:
    """Build an Enqueue with defaults for everything that the test does not name."""
    usual = {
        "run_id": new_id(),
        "task": TASK,
        "queue": "default",
        "lane": LANE,
        "priority": 0,
        "arguments": '[[],{"to":"ada"}]',
    }
    if "delay_seconds" in options:
        options["delay"] = round(options.pop("delay_seconds") * SECOND)
    if "expires_seconds" in options:
        options["expires"] = round(options.pop("expires_seconds") * SECOND)
    if isinstance(options.get("tags"), dict):
        options["tags"] = json.dumps(options["tags"])
    if isinstance(options.get("key"), str):
        options["key"] = key(options["key"])
    return Enqueue(**usual | options)


def key(
    text: str,
    *,
    fingerprint: str = "print-1",
    ttl_seconds: float | None = DAY_SECONDS,
    active_only: bool = False,
) -> Key:
    """Build a key with the usual options."""
    ttl = None if ttl_seconds is None else round(ttl_seconds * SECOND)
    return Key(text, fingerprint, ttl, active_only)


def accept(store: Any, **options: Any) -> Accepted:
    """Enqueue one run and return the whole answer."""
    return store.do(order(**options))


def enqueue_one(store: Any, **options: Any) -> str:
    """Enqueue one run and return its id."""
    return accept(store, **options).run_id


def enqueue_many(store: Any, count: int, **options: Any) -> list[str]:
    """Enqueue a number of runs in one call and return their ids, oldest first."""
    return [answer.run_id for answer in store.apply([order(**options) for _ in range(count)])]


# -- working --


def register(
    store: Any,
    worker: str = WORKER,
    *,
    tasks: tuple[str, ...] = TASKS,
    lanes: dict[str, str] | None = None,
) -> str:
    """Register a live worker, with the lanes of its tasks if a test names them; return its id."""
    known, seen_to = json.dumps(tasks), json.dumps(lanes or {})
    op = RegisterWorker(worker, "host", 4711, 15.0, '["default"]', known, seen_to)
    store.do(op)
    return worker


def claim(
    store: Any,
    limit: int = 1000,
    *,
    worker: str = WORKER,
    queue: str | None = None,
    lane: str = LANE,
    tasks: tuple[str, ...] = TASKS,
    after_queue: str = "",
) -> list[Claim]:
    """Claim up to `limit` runs."""
    return store.do(ClaimRuns(worker, (Want(queue, lane, limit),), tasks, after_queue))


def claimed_ids(store: Any, limit: int = 1000, **options: Any) -> list[str]:
    """Claim up to `limit` runs and return their ids, in the order they were given."""
    return [claim.run_id for claim in claim(store, limit, **options)]


def claim_one(store: Any, **options: Any) -> Claim:
    """Claim the only run that can be claimed."""
    (only,) = claim(store, **options)
    return only


def enqueue_and_claim(store: Any, *, worker: str = WORKER, **options: Any) -> Claim:
    """Enqueue a run and claim it; it is the only one that can be claimed."""
    run_id = enqueue_one(store, **options)
    found = claim_one(store, worker=worker, lane=options.get("lane", LANE))
    assert found.run_id == run_id
    return found


# -- ending attempts --


def settle_op(claim: Claim, outcome: str, verdict: Finish | Requeue, **options: Any) -> Settle:
    """Build a Settle for a claim."""
    return Settle(claim.run_id, claim.claim_number, outcome, verdict, 0, **options)


def success(claim: Claim, result: str | None = None) -> Settle:
    """Build the Settle of a body that returned."""
    return settle_op(claim, "returned", Finish(State.SUCCEEDED, None, result))


def failure(claim: Claim, error: ErrorText = BOOM) -> Settle:
    """Build the Settle of a body that raised and is not tried again."""
    return settle_op(claim, "raised", Finish(State.FAILED, "raised"), error=error)


def another_try(claim: Claim, after: float = 0.0, *, lane: str | None = None) -> Settle:
    """Build the Settle of a body that raised and is tried again."""
    again = Requeue(
        after, claim.attempt + 1, claim.retries_used + 1, claim.crashes, lane or claim.lane
    )
    return settle_op(claim, "raised", again, error=BOOM)


def hand_back_op(claim: Claim) -> Settle:
    """Build the Settle of a claim whose body never started."""
    same = Requeue(
        0.0, claim.attempt, claim.retries_used, claim.crashes, claim.lane, recorded=False
    )
    return settle_op(claim, "handed_back", same)


def settle(store: Any, op: Settle) -> Settled:
    """Record how one attempt ended."""
    return store.do(op)


def succeed(store: Any, claim: Claim, result: str | None = None) -> Settled:
    """End a run with a success."""
    return settle(store, success(claim, result))


def fail(store: Any, claim: Claim, error: ErrorText = BOOM) -> Settled:
    """End a run with a failure."""
    return settle(store, failure(claim, error))


def retry_now(store: Any, claim: Claim) -> Settled:
    """Queue a run again at once."""
    return settle(store, another_try(claim))


def retry_later(store: Any, claim: Claim, seconds: float) -> Settled:
    """Queue a run again for later."""
    return settle(store, another_try(claim, seconds))


def hand_back(store: Any, claim: Claim) -> Settled:
    """Hand a claim back, which does not count as an attempt."""
    return settle(store, hand_back_op(claim))


def enqueue_and_succeed(store: Any, **options: Any) -> str:
    """Enqueue a run, claim it and end it with a success; return its id."""
    found = enqueue_and_claim(store, **options)
    assert succeed(store, found) is Settled.DONE
    return found.run_id


def enqueue_and_fail(store: Any, *, error: ErrorText = BOOM, **options: Any) -> str:
    """Enqueue a run, claim it and end it with a failure; return its id."""
    found = enqueue_and_claim(store, **options)
    assert fail(store, found, error) is Settled.DONE
    return found.run_id


# -- recovery and upkeep --


def lost(run: ClaimedRun) -> tuple[str, Finish | Requeue, ErrorText | None]:
    """Judge a dead worker's run as recovery does if the body had started and no other body had."""
    return _judged(run, Lost(started=True, charged=True))


def crashed(_run: ClaimedRun) -> tuple[str, Finish, None]:
    """Judge a dead worker's run as one that crashed too often."""
    return "lost", Finish(State.FAILED, "crashed"), None


def unstarted(run: ClaimedRun) -> tuple[str, Finish | Requeue, ErrorText | None]:
    """Judge a dead worker's run whose body had not started."""
    return _judged(run, Lost(started=False, charged=False))


def recover(
    store: Any,
    worker: str = WORKER,
    judge: Callable[[ClaimedRun], Any] = lost,
    *,
    stopped: bool = False,
) -> list[str]:
    """Declare a worker dead; return the runs that were taken from it."""
    return store.do(Recover(worker, judge, stopped))


def tick(store: Any, limit: int = 1000) -> Ticked:
    """Run one tick of upkeep."""
    return store.do(Tick(limit))


# -- carried runs --


def hand_over(
    store: Any, *tasks: str, limit: int = 10, most: int | None = None
) -> list[CarrierMessage]:
    """Mark runs of these tasks, or of the usual one, as handed over; return their messages."""
    op = HandOver(tasks or (TASK,), stale=MINUTE, longest=3 * MINUTE, limit=limit, most=most)
    return store.do(op).messages


def take(store: Any, message: CarrierMessage, worker: str = WORKER) -> Claim | None:
    """Claim the run of a message; return None if it can no longer be claimed."""
    return store.do(ClaimCarried(worker, message.run_id, message.claim_number))


# -- operator actions --


def cancel(store: Any, run_id: str, reason: str = "") -> str | None:
    """Cancel a run."""
    return store.do(Cancel(run_id, ACTOR, reason))


def redrive(store: Any, run_id: str, **options: Any) -> RetriedRun:
    """Queue a final run again."""
    return store.do(RetryRun(run_id, ACTOR, **options))


def pausing(queue: str) -> PauseQueue:
    """Build the op that stops a queue."""
    return PauseQueue(queue, paused=True, actor=ACTOR)


def pause(store: Any, queue: str = "default") -> None:
    """Stop a queue."""
    store.do(pausing(queue))


def resume(store: Any, queue: str = "default") -> None:
    """Resume a queue."""
    store.do(PauseQueue(queue, paused=False, actor=ACTOR))


# -- reads --


def run_of(store: Any, run_id: str) -> RunRecord:
    """Return a run that exists."""
    found = store.get_run(run_id)
    assert found is not None
    return found


def state_of(store: Any, run_id: str) -> str:
    """Return the state of a run that exists."""
    return run_of(store, run_id).state


def listed_ids(store: Any, **which: Any) -> list[str]:
    """Return the ids of the runs that a filter finds, newest first."""
    return [run.id for run in store.list_runs(RunFilter(**{"limit": 1000} | which))]


def outcomes_of(store: Any, run_id: str) -> list[tuple[int, str]]:
    """Return (claim number, outcome) of every recorded attempt."""
    return [(attempt.claim_number, attempt.outcome) for attempt in store.list_attempts(run_id)]


# -- concurrency --


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """Run each action in a thread, all started together; return their results or raise an error."""
    gate = threading.Barrier(len(actions))
    results: list[Any] = [None] * len(actions)
    errors: list[BaseException] = []

    def act(place: int) -> None:
        gate.wait()
        try:
            results[place] = actions[place]()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=act, args=(place,)) for place in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def submitted(store: Any, ops: list[Any]) -> Future[list[Any]]:
    """Submit ops to the store as an event loop does; they are queued when this returns."""
    future: Future[list[Any]] = Future()

    def done(answers: list[Any] | BaseException) -> None:
        if isinstance(answers, BaseException):
            future.set_exception(answers)
        else:
            future.set_result(answers)

    store.submit(ops, done)
    return future


@contextmanager
def commit_held_up(store: Any, worker: str) -> Iterator[None]:
    """Keep a commit under way for a block, in the recovery of a worker that holds a run."""
    under_way, go_on = threading.Event(), threading.Event()

    def judge(run: ClaimedRun) -> tuple[str, Finish | Requeue, ErrorText | None]:
        under_way.set()
        assert go_on.wait(TIMEOUT)
        return lost(run)

    thread = threading.Thread(target=recover, args=(store, worker, judge))
    thread.start()
    try:
        assert under_way.wait(TIMEOUT)
        yield
    finally:
        go_on.set()
        thread.join()


def _judged(run: ClaimedRun, outcome: Lost) -> tuple[str, Finish | Requeue, ErrorText | None]:
    standing = AttemptState(
        run.attempt,
        run.retries_used,
        run.crashes,
        run.lane,
        cancel_requested=bool(run.cancel_requested),
    )
    return "lost", decide(standing, outcome, UNKNOWN_POLICY, jitter=0.0), describe(outcome)

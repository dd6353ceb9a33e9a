"""Who writes what: one committer with a connection of its own for each kind of traffic.

Enqueues, claims, settles and the rest overlap on the server and never wait for one another here.
Keyed enqueues go apart from the others, since a caller's open transaction may hold a key.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from psycopg.errors import LockNotAvailable

from duly import faultpoints
from duly.clock import jitter, monotonic
from duly.core.verdict import Finish
from duly.errors import StoreUnavailable, WouldBlockItself
from duly.store import admin_ops, carry_ops, guard_ops, lock_ops, ops, step_ops
from duly.store.committer import Committer, Done
from duly.store.ops import Op
from duly.store.postgres import carry, guard, locks, operate, restore, schedules, steps, upkeep
from duly.store.postgres.address import Address
from duly.store.postgres.claim import Claimer
from duly.store.postgres.connection import HOT, UPKEEP, Session
from duly.store.postgres.enqueue import KeyHeld, enqueue, enqueue_keyed
from duly.store.postgres.line import Line
from duly.store.postgres.own_keys import OwnKeys
from duly.store.postgres.settle import settle_alone
from duly.store.postgres.sweep import Sweeper
from duly.store.postgres.wakeup import Hints

HELD_KEY_SECONDS = 10.0
OWN_KEY_SECONDS = 2.0
"""For a key that this process took in a transaction of a caller's, who may be waiting for us."""
_SHORTEST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.1

_Verb = Callable[[Session, Any], Any]

_OPERATIONS: dict[type, tuple[str, _Verb]] = {
    ops.RegisterWorker: ("operate", upkeep.register),
    ops.SetProgress: ("operate", operate.set_progress),
    ops.AddLogs: ("operate", operate.add_logs),
    step_ops.ResolveStep: ("operate", steps.resolve),
    ops.Cancel: ("operate", operate.cancel),
    ops.Redrive: ("operate", operate.redrive),
    ops.DiscardDead: ("operate", operate.discard_dead),
    ops.PauseQueue: ("operate", operate.pause_queue),
    ops.ResetKey: ("operate", operate.reset_key),
    admin_ops.RecordAct: ("operate", operate.write_down),
    ops.Recover: ("recover", upkeep.recover),
    ops.RecoverOrphans: ("recover", upkeep.recover_orphans),
    ops.PutSchedule: ("operate", schedules.put),
    ops.SetSchedule: ("operate", schedules.set_state),
    ops.RunSchedule: ("operate", schedules.run_now),
    ops.BackfillSchedule: ("operate", schedules.backfill),
    ops.FireSchedules: ("operate", schedules.fire),
    lock_ops.AcquireLock: ("operate", locks.acquire),
    lock_ops.ReleaseLock: ("operate", locks.release),
    guard_ops.FinishKey: ("operate", guard.finish),
    guard_ops.FailKey: ("operate", guard.fail),
    guard_ops.ForgetKey: ("operate", guard.forget),
    guard_ops.AcquireKey: ("operate", guard.acquire),
    guard_ops.PutLetter: ("operate", guard.put_letter),
    guard_ops.EndLetter: ("operate", guard.end_letter),
    step_ops.BeginStep: ("operate", steps.begin),
    step_ops.EndStep: ("operate", steps.end),
    step_ops.ForgetStep: ("operate", steps.forget),
    step_ops.SendEvent: ("operate", steps.send_event),
    step_ops.WakeRuns: ("operate", steps.wake),
    step_ops.RecheckWaits: ("operate", steps.recheck),
    carry_ops.Relane: ("operate", carry.relane),
    carry_ops.HandOver: ("operate", carry.hand_over),
    carry_ops.HandAgain: ("operate", carry.hand_again),
    admin_ops.SetAside: ("operate", restore.set_aside),
    admin_ops.LimitQueue: ("operate", operate.limit_queue),
    admin_ops.BoundQueue: ("operate", operate.bound_queue),
    ops.Tick: ("operate", upkeep.tick),
    ops.Prune: ("operate", upkeep.prune),
    ops.FoldTallies: ("operate", upkeep.fold),
}
"""Fault point and verb, in the order in which one commit does them."""

_RENEWALS: dict[type, _Verb] = {lock_ops.RenewLock: locks.renew, guard_ops.RenewKey: guard.renew}
"""One statement each, and so one transaction each: who is frozen in the middle of renewing what it
holds must not hold the row too, or nobody could take that over."""

_TURNS: dict[type, int] = {
    **dict.fromkeys([*_OPERATIONS, *_RENEWALS], 3),
    ops.RegisterWorker: 0,
    ops.SetProgress: 0,
    ops.AddLogs: 0,
    ops.Settle: 1,
    ops.Enqueue: 2,
    ops.HandBackUnknown: 4,
    ops.ClaimRuns: 4,
    carry_ops.ClaimCarried: 4,
}
"""Within one call: an attempt's words before its end, claims last, so that they see all."""

_COMMITTERS = ("operate", "settle", "enqueue", "operate", "claim")
"""By turn; enqueues with a key go to "keyed"."""

_WAKING = (
    ops.Redrive,
    ops.PauseQueue,
    admin_ops.LimitQueue,
    ops.PutSchedule,
    ops.SetSchedule,
    ops.RunSchedule,
    ops.BackfillSchedule,
    step_ops.SendEvent,
)
_WAKING_IF_FOUND = (
    ops.Recover,
    ops.RecoverOrphans,
    ops.FireSchedules,
    step_ops.WakeRuns,
    carry_ops.Relane,
)


class _Part(NamedTuple):
    committer: str
    places: list[int]
    ops: list[Op]


class Writers:
    """All that one process writes with."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.hints = Hints(address)
        self._sweeper = Sweeper(address)
        names = ("enqueue", "keyed", "claim", "settle")
        self._lines = {name: Line(address, HOT) for name in names}
        self._lines["operate"] = Line(address, UPKEEP)
        self._claimer = Claimer(self._lines["claim"])
        self._writes = {
            "enqueue": self._enqueue,
            "keyed": self._enqueue_keyed,
            "claim": self._claim,
            "settle": self._settle,
            "operate": self._operate,
        }
        self._committers = {
            name: Committer(write, name=f"duly-{name}") for name, write in self._writes.items()
        }
        self._patient = Line(address, HOT)
        self._patience = threading.Lock()
        self.own_keys = OwnKeys()

    def apply(self, ops: Sequence[Op]) -> list[Any]:
        """Write the ops and return their answers, in order."""
        if len(set(map(type, ops))) == 1:
            return self._apply(_committer_for(_TURNS[type(ops[0])], ops), ops)
        answers: list[Any] = [None] * len(ops)
        for part in _parts(ops):
            _spread(self._apply(part.committer, part.ops), part, answers)
        return answers

    def submit(self, ops: Sequence[Op], done: Done) -> None:
        """Write the ops from the committers' own threads, one part after the other."""
        self._submit(_parts(ops), [None] * len(ops), done)

    def close(self) -> None:
        """Write what waits, end all threads, hang up."""
        for committer in self._committers.values():
            committer.close()
        self.hints.close()
        self._sweeper.close()
        for line in (*self._lines.values(), self._patient):
            line.close()

    def _apply(self, committer: str, ops: Sequence[Op]) -> list[Any]:
        try:
            return self._write(committer, ops)
        except KeyHeld as held:
            return self._wait_for_keys(ops, held)
        except StoreUnavailable as error:
            is_held = isinstance(error.__cause__, LockNotAvailable)
            if is_held and self.own_keys.has_event_of(ops):
                raise WouldBlockItself(str(error)) from error
            raise

    def _write(self, committer: str, ops: Sequence[Op]) -> list[Any]:
        return self._committers[committer].apply(ops)

    def _submit(self, parts: list[_Part], answers: list[Any], done: Done) -> None:
        if not parts:
            done(answers)
            return
        part, *rest = parts

        def written(outcome: list[Any] | BaseException) -> None:
            if isinstance(outcome, KeyHeld):
                # The committer's thread must not wait for somebody else's transaction.
                waiting = threading.Thread(
                    target=self._wait_apart,
                    args=(part.ops, outcome, written),
                    name="duly-held-key",
                    daemon=True,
                )
                waiting.start()
            elif isinstance(outcome, BaseException):
                done(outcome)
            else:
                _spread(outcome, part, answers)
                self._submit(rest, answers, done)

        self._committers[part.committer].submit(part.ops, written)

    # -- the writes of the committers --

    def _enqueue(self, ops: list[Any]) -> list[Any]:
        faultpoints.hit("enqueue.before_write")
        # One statement is one transaction here, so this is where it is not yet committed.
        faultpoints.hit("enqueue.before_commit")
        answers, is_told = enqueue(self._lines["enqueue"], ops, self.hints)
        faultpoints.hit("enqueue.after_commit")
        if is_told:
            self.hints.send_here()
        else:
            self.hints.send()
        return answers

    def _enqueue_keyed(self, ops: list[Any]) -> list[Any]:
        return self._enqueue_on(self._lines["keyed"], ops)

    def _enqueue_on(self, line: Line, ops: Sequence[Any]) -> list[Any]:
        def write(session: Session) -> list[Any]:
            faultpoints.hit("enqueue.before_write")
            answers = enqueue_keyed(session, ops)
            faultpoints.hit("enqueue.before_commit")
            return answers

        answers = line.transact(write)
        faultpoints.hit("enqueue.after_commit")
        self.hints.send()
        return answers

    def _settle(self, ops: list[Any]) -> list[Any]:
        faultpoints.hit("settle.before_write")
        faultpoints.hit("settle.before_commit")
        answers = settle_alone(self._lines["settle"], ops)
        faultpoints.hit("settle.after_commit")
        if any(type(op.verdict) is not Finish for op in ops):
            self.hints.send()
        return answers

    def _claim(self, written: list[Any]) -> list[Any]:
        answers: list[Any] = [None] * len(written)
        claims = [place for place, op in enumerate(written) if isinstance(op, ops.ClaimRuns)]
        carried = [
            place for place, op in enumerate(written) if isinstance(op, carry_ops.ClaimCarried)
        ]
        if len(claims) + len(carried) < len(written):
            self._hand_back(written, answers)
        if claims or carried:
            faultpoints.hit("claim.before_write")
            faultpoints.hit("claim.before_commit")
            for place in carried:
                answers[place] = self._claimer.claim_carried(written[place])
            if claims:
                found = self._claimer.claim([written[place] for place in claims])
                for place, answer in zip(claims, found, strict=True):
                    answers[place] = answer
            faultpoints.hit("claim.after_commit")
        return answers

    def _hand_back(self, written: list[Any], answers: list[Any]) -> None:
        """Hand back on the claims' own line: no claim of this process is under way meanwhile."""

        def write(session: Session) -> None:
            faultpoints.hit("recover.before_write")
            for place, op in enumerate(written):
                if isinstance(op, ops.HandBackUnknown):
                    answers[place] = upkeep.hand_back_unknown(session, op)
            faultpoints.hit("recover.before_commit")

        self._lines["claim"].transact(write)
        faultpoints.hit("recover.after_commit")
        if any(answers):
            self.hints.send()

    def _operate(self, written: list[Any]) -> list[Any]:
        kinds = set(map(type, written))
        order = [kind for kind in _OPERATIONS if kind in kinds]
        answers: list[Any] = [None] * len(written)
        if not kinds.isdisjoint(_RENEWALS):
            self._renew(written, answers)
        if not order:
            return answers

        def write(session: Session) -> None:
            for kind in order:
                point, verb = _OPERATIONS[kind]
                faultpoints.hit(f"{point}.before_write")
                for place, op in enumerate(written):
                    if type(op) is kind:
                        answers[place] = verb(session, op)
                faultpoints.hit(f"{point}.before_commit")

        self._lines["operate"].transact(write)
        for kind in order:
            faultpoints.hit(f"{_OPERATIONS[kind][0]}.after_commit")
        if ops.Tick in kinds:
            self._sweep_after_ticks(answers)
        found = (
            answer
            for op, answer in zip(written, answers, strict=True)
            if isinstance(op, _WAKING_IF_FOUND)
        )
        if not kinds.isdisjoint(_WAKING) or any(found):
            self.hints.send()
        return answers

    def _renew(self, written: list[Any], answers: list[Any]) -> None:
        def write(session: Session, _lost: bool) -> None:  # noqa: FBT001 - as `run` calls it
            for place, op in enumerate(written):
                if type(op) in _RENEWALS:
                    answers[place] = _RENEWALS[type(op)](session, op)

        faultpoints.hit("operate.before_write")
        faultpoints.hit("operate.before_commit")
        self._lines["operate"].run(write)
        faultpoints.hit("operate.after_commit")

    def _sweep_after_ticks(self, answers: list[Any]) -> None:
        for place, answer in enumerate(answers):
            if isinstance(answer, upkeep.Tended):
                self._sweeper.look(answer.dead_rows)
                answers[place] = answer.ticked

    # -- keys that somebody's open transaction holds --

    def _wait_for_keys(self, ops: Sequence[Op], held: KeyHeld) -> list[Any]:
        """Try again, alone and in the caller's own time, until the keys are let go."""
        is_own = self.own_keys.has_key(held.task, held.key)
        seconds = OWN_KEY_SECONDS if is_own else HELD_KEY_SECONDS
        deadline = monotonic() + seconds
        pause = _SHORTEST_PAUSE_SECONDS
        while monotonic() < deadline:
            time.sleep(pause * (0.5 + jitter()))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            with self._patience:
                try:
                    return self._enqueue_on(self._patient, ops)
                except KeyHeld as again:
                    held = again
        message = (
            f"{self._address.shown_url}: key {held.key!r} of task {held.task!r} has been held for "
            f"{seconds:.0f} s by a transaction that is still open; "
        )
        if is_own:
            raise WouldBlockItself(
                message + "if it is the caller's own, enqueue in it with using(connection=…), or "
                "end it first"
            )
        raise StoreUnavailable(message + "commit it or roll it back, then enqueue again")

    def _wait_apart(self, ops: Sequence[Op], held: KeyHeld, done: Done) -> None:
        try:
            answers = self._wait_for_keys(ops, held)
        except BaseException as error:  # noqa: BLE001 - handed to the caller, who waits for it
            done(error)
        else:
            done(answers)


def _parts(written: Sequence[Op]) -> list[_Part]:
    """Part the ops by who writes them, in the order of their turns."""
    turns = [_TURNS[type(op)] for op in written]
    parts = []
    for turn in sorted(set(turns)):
        places = [place for place, found in enumerate(turns) if found == turn]
        own = [written[place] for place in places]
        parts.append(_Part(_committer_for(turn, own), places, own))
    return parts


def _committer_for(turn: int, written: Sequence[Op]) -> str:
    name = _COMMITTERS[turn]
    if name == "enqueue" and any(isinstance(op, ops.Enqueue) and op.key for op in written):
        # What was asked for together is written together.
        return "keyed"
    return name


def _spread(found: list[Any], part: _Part, answers: list[Any]) -> None:
    for place, answer in zip(part.places, found, strict=True):
        answers[place] = answer

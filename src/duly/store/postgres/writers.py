"""Who writes what: one committer with a connection of its own for each kind of traffic.

Enqueues, claims, settles and the rest overlap on the server and never wait for one another here.
Keyed enqueues and events go apart from the others, since a caller's open transaction may hold a key
or have sent the same event. Renewals of locks go with them: nothing there waits for long.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from psycopg.errors import LockNotAvailable

from duly import faultpoints
from duly.core.verdict import Finish
from duly.errors import StoreBusy
from duly.store import admin_ops, carry_ops, guard_ops, lock_ops, ops, schedule_ops, step_ops
from duly.store.committer import Committer, Done, OpBlocked
from duly.store.hints import hints_of
from duly.store.op_sizes import size_of
from duly.store.ops import Op
from duly.store.postgres import carry, guard, locks, operate, restore, schedules, steps, upkeep
from duly.store.postgres.address import Address
from duly.store.postgres.claim import Claimer
from duly.store.postgres.connection import HOT, KEYED, UPKEEP, Session
from duly.store.postgres.enqueue import enqueue, enqueue_keyed
from duly.store.postgres.failures import translated
from duly.store.postgres.held_names import HeldNames, NameHeld
from duly.store.postgres.line import Line, WriteRecord
from duly.store.postgres.settle import settle_alone
from duly.store.postgres.sweep import Sweeper
from duly.store.postgres.wakeup import Hints
from duly.store.waiting import repeated

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
    schedule_ops.PutSchedule: ("operate", schedules.put),
    schedule_ops.SetSchedule: ("operate", schedules.set_state),
    schedule_ops.RunSchedule: ("operate", schedules.run_now),
    schedule_ops.BackfillSchedule: ("operate", schedules.backfill),
    schedule_ops.FireSchedules: ("operate", schedules.fire),
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

_DUTIES = (ops.RecoverOrphans, step_ops.RecheckWaits, carry_ops.Relane, ops.Prune, ops.FoldTallies)
_ALONE = (ops.Tick, step_ops.WakeRuns, *_DUTIES)
"""In a transaction each: meanwhile others leave a duty alone. Ticks, wake-ups and rechecks lock
all of their waits at once and in order, before anything else, so that no two of them deadlock."""

_TURNS: dict[type, int] = {
    **dict.fromkeys(_OPERATIONS, 3),
    **dict.fromkeys(_RENEWALS, 2),
    ops.RegisterWorker: 0,
    ops.SetProgress: 0,
    ops.AddLogs: 0,
    ops.Settle: 1,
    ops.Enqueue: 2,
    ops.EnqueueAgain: 2,
    step_ops.SendEvent: 2,
    ops.HandBackUnknown: 4,
    ops.ClaimRuns: 4,
    carry_ops.ClaimCarried: 4,
}
"""Within one call: an attempt's words before its end, claims last, so that they see all."""

_COMMITTERS = ("operate", "settle", "enqueue", "operate", "claim")
"""By turn; enqueues with a key, events and renewals go to "keyed"."""

_WAKING = (
    ops.Redrive,
    ops.PauseQueue,
    admin_ops.LimitQueue,
    schedule_ops.PutSchedule,
    schedule_ops.SetSchedule,
    schedule_ops.RunSchedule,
    schedule_ops.BackfillSchedule,
)
_WAKING_IF_FOUND = (
    ops.Recover,
    ops.RecoverOrphans,
    schedule_ops.FireSchedules,
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
        self.record = record = WriteRecord()
        settings = {"enqueue": HOT, "keyed": KEYED, "claim": HOT, "settle": HOT, "operate": UPKEEP}
        self._lines = {name: Line(address, wanted, record) for name, wanted in settings.items()}
        self._claimer = Claimer(self._lines["claim"])
        self._writes = {
            "enqueue": self._enqueue,
            "keyed": self._enqueue_keyed,
            "claim": self._claim,
            "settle": self._settle,
            "operate": self._operate,
        }
        self._committers = {
            name: Committer(
                write,
                name=f"duly-{name}",
                alone=_ALONE if name == "operate" else (),
                size_of=size_of,
            )
            for name, write in self._writes.items()
        }
        self.held_names = HeldNames(Line(address, KEYED), self._write_names)

    def apply(self, ops: Sequence[Op]) -> list[Any]:
        """Write the ops and return their answers, in order."""
        if len(set(map(type, ops))) == 1:
            return self._apply(_committer_for(_TURNS[type(ops[0])], ops), ops)
        answers: list[Any] = [None] * len(ops)
        for part in _parts(ops):
            _spread(self._apply(part.committer, part.ops), part.places, answers)
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
        for line in self._lines.values():
            line.close()
        self.held_names.close()

    def _apply(self, committer: str, ops: Sequence[Op]) -> list[Any]:
        try:
            return self._write(committer, ops)
        except NameHeld:
            return self.held_names.wait(ops)

    def _write(self, committer: str, ops: Sequence[Op]) -> list[Any]:
        return self._committers[committer].apply(ops)

    def _submit(self, parts: list[_Part], answers: list[Any], done: Done) -> None:
        if not parts:
            done(answers)
            return
        part, *rest = parts

        def written(outcome: list[Any] | BaseException) -> None:
            if isinstance(outcome, NameHeld):
                self.held_names.wait_apart(part.ops, written)
            elif isinstance(outcome, BaseException):
                done(outcome)
            else:
                _spread(outcome, part.places, answers)
                self._submit(rest, answers, done)

        self._committers[part.committer].submit(part.ops, written)

    def _enqueue(self, ops: list[Any]) -> list[Any]:
        faultpoints.hit("enqueue.before_write")
        # One statement is one transaction here, so this is where it is not yet committed.
        faultpoints.hit("enqueue.before_commit")
        said = hints_of(ops)
        answers, is_told = enqueue(self._lines["enqueue"], ops, self.hints, said)
        faultpoints.hit("enqueue.after_commit")
        (self.hints.send_here if is_told else self.hints.send)(said)
        return answers

    def _enqueue_keyed(self, ops: list[Any]) -> list[Any]:
        if self.held_names.is_held(ops):
            raise NameHeld
        return self._write_names(self._lines["keyed"], ops)

    def _write_names(self, line: Line, written: Sequence[Any]) -> list[Any]:
        """Write what a transaction that is still open may hold up; nothing waits here for long."""
        answers: list[Any] = [None] * len(written)
        renewals = [place for place, op in enumerate(written) if type(op) in _RENEWALS]
        others = [place for place, op in enumerate(written) if type(op) not in _RENEWALS]
        try:
            for places, write in ((renewals, self._renew), (others, self._write_named)):
                found = write(line, [written[place] for place in places]) if places else []
                _spread(found, places, answers)
        except StoreBusy as error:
            if isinstance(error.__cause__, LockNotAvailable):
                self.held_names.note_held(written)
                raise NameHeld from error
            raise
        return answers

    def _write_named(self, line: Line, written: Sequence[Any]) -> list[Any]:
        points = {"operate" if isinstance(op, step_ops.SendEvent) else "enqueue" for op in written}

        def write(session: Session, named: Sequence[Any] = written) -> list[Any]:
            _hit(points, "before_write")
            answers = _named(session, named)
            _hit(points, "before_commit")
            return answers

        answers = line.transact(write, lambda session: write(session, repeated(written)))
        _hit(points, "after_commit")
        # An event is for a look at what waits, which makes runs ready.
        self.hints.send(hints_of(written) if points == {"enqueue"} else ())
        return answers

    def _renew(self, line: Line, written: Sequence[Any]) -> list[Any]:
        def write(session: Session, _lost: bool) -> list[Any]:  # noqa: FBT001 - as `run` calls it
            return [_RENEWALS[type(op)](session, op) for op in written]

        _hit(["operate"], "before_write")
        _hit(["operate"], "before_commit")
        answers = line.run(write)
        _hit(["operate"], "after_commit")
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
                _spread(found, claims, answers)
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
        answers: list[Any] = [None] * len(written)
        for places in _transactions(written):
            found = self._operate_together([written[place] for place in places])
            _spread(found, places, answers)
        return answers

    def _operate_together(self, written: list[Any]) -> list[Any]:
        kinds = set(map(type, written))
        order = [kind for kind in _OPERATIONS if kind in kinds]
        answers: list[Any] = [None] * len(written)
        # All transactions lock runs in the order of their ids, as ticks do.
        by_run = sorted(enumerate(written), key=lambda each: str(getattr(each[1], "run_id", "")))

        def write(session: Session) -> None:
            for kind in order:
                point, verb = _OPERATIONS[kind]
                faultpoints.hit(f"{point}.before_write")
                for place, op in by_run:
                    if type(op) is kind:
                        answers[place] = self._carry_out(verb, session, op)
                faultpoints.hit(f"{point}.before_commit")

        self._lines["operate"].transact(write)
        for kind in order:
            faultpoints.hit(f"{_OPERATIONS[kind][0]}.after_commit")
        if ops.Tick in kinds:
            self._sweep_after_ticks(answers)
        pairs = zip(written, answers, strict=True)
        has_found = any(answer for op, answer in pairs if isinstance(op, _WAKING_IF_FOUND))
        if not kinds.isdisjoint(_WAKING) or has_found:
            self.hints.send()
        return answers

    def _carry_out(self, verb: _Verb, session: Session, op: Any) -> Any:  # noqa: ANN401
        try:
            return verb(session, op) if upkeep.has_turn(session, op) else None
        except LockNotAvailable as error:
            raise OpBlocked(str(translated(error, self._address)), op) from error

    def _sweep_after_ticks(self, answers: list[Any]) -> None:
        for place, answer in enumerate(answers):
            if isinstance(answer, upkeep.Tended):
                self._sweeper.look(answer.dead_rows)
                answers[place] = answer.ticked


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
    if name == "enqueue" and any(not isinstance(op, ops.Enqueue) or op.key for op in written):
        # What was asked for together is written together.
        return "keyed"
    return name


def _transactions(written: Sequence[Op]) -> list[list[int]]:
    """Return which ops share a transaction, by their places, in the order of the ops."""
    found: list[list[int]] = [[]]
    for place, op in enumerate(written):
        if isinstance(op, _ALONE):
            found += [[place], []]
        else:
            found[-1].append(place)
    return [places for places in found if places]


def _named(session: Session, written: Sequence[Any]) -> list[Any]:
    """Write enqueues and events; all transactions take keys and then events in their order."""
    answers: list[Any] = [None] * len(written)
    enqueues = [place for place, op in enumerate(written) if isinstance(op, ops.Enqueue)]
    accepted = enqueue_keyed(session, [written[place] for place in enqueues])
    _spread(accepted, enqueues, answers)
    events = [place for place, op in enumerate(written) if isinstance(op, step_ops.SendEvent)]
    for place in sorted(events, key=lambda place: written[place].name):
        answers[place] = steps.send_event(session, written[place])
    return answers


def _hit(points: Iterable[str], where: str) -> None:
    for point in points:
        faultpoints.hit(f"{point}.{where}")


def _spread(found: Sequence[Any], places: Sequence[int], answers: list[Any]) -> None:
    for place, answer in zip(places, found, strict=True):
        answers[place] = answer

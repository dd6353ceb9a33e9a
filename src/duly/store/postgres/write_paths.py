"""The write paths of a process: one committer with its own connection for each kind of traffic.

Enqueues, claims, settles and the other ops overlap on the server and never wait for one another in
this process. Keyed enqueues and events have a committer of their own, because a caller's open
transaction may hold the same key or have sent the same event. Renewals of locks and keys share that
committer, because nothing waits there for long.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from psycopg.errors import LockNotAvailable

from duly import faultpoints
from duly.core.verdict import Finish
from duly.errors import StoreBusy
from duly.store.group_commit import Answers, Committer, Done, OpBlocked
from duly.store.hints import hints_of
from duly.store.ops.carriers import ClaimCarried
from duly.store.ops.guard import AcquireKey, FailKey, FinishKey, ForgetKey, RenewKey
from duly.store.ops.locks import RenewLock
from duly.store.ops.op import FACTS, A, AnyOp, Op, Phase, is_alone, makes_ready, size_of, spread
from duly.store.ops.operators import LimitQueue, PauseQueue, SetQueueCapacity
from duly.store.ops.recovery import HandBackUnknown
from duly.store.ops.runs import ClaimRuns, Enqueue
from duly.store.ops.steps import SendEvent
from duly.store.ops.upkeep import Ticked
from duly.store.outage_wait import as_repeatable
from duly.store.postgres.address import Address
from duly.store.postgres.claim import PostgresClaims
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.enqueue import enqueue, enqueue_keyed
from duly.store.postgres.failures import translated
from duly.store.postgres.held_names import HeldNames, NameHeld
from duly.store.postgres.reconnecting_connection import ReconnectingConnection, WriteFailureRecord
from duly.store.postgres.session_settings import HOT, KEYED, UPKEEP
from duly.store.postgres.settle import settle_alone
from duly.store.postgres.transaction import LoneStatements, PostgresTransaction
from duly.store.postgres.vacuum import VacuumThread
from duly.store.postgres.wakeup import PostgresHints
from duly.store.verbs.verb import carry_out

COMMITTERS = {
    Phase.UPDATE: "operate",
    Phase.SETTLE: "settle",
    Phase.ENQUEUE: "enqueue",
    Phase.OPERATE: "operate",
    Phase.CLAIM: "claim",
}
"""Enqueues with a key, events and renewals use "keyed"."""


RENEWALS = (RenewLock, RenewKey)
"""Each of these ops is one statement, which is its own transaction."""


_LOCKED_ROWS: dict[type, str] = {
    PauseQueue: "queue",
    LimitQueue: "queue",
    SetQueueCapacity: "queue",
    AcquireKey: "key",
    FinishKey: "key",
    FailKey: "key",
    ForgetKey: "key",
}
"""The field that names the row which an op locks, if that is not the row of a run."""


class _WritePart(NamedTuple):
    committer: str
    places: list[int]
    ops: list[AnyOp]


class WritePaths:
    """All committers and connections that one process writes with."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.hints = PostgresHints(address)
        self._sweeper = VacuumThread(address)
        self.record = record = WriteFailureRecord()
        settings = {"enqueue": HOT, "keyed": KEYED, "claim": HOT, "settle": HOT, "operate": UPKEEP}
        self._lines = {
            name: ReconnectingConnection(address, wanted, record)
            for name, wanted in settings.items()
        }
        self._claimer = PostgresClaims(self._lines["claim"])
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
                is_alone=is_alone if name == "operate" else None,
                size_of=size_of,
            )
            for name, write in self._writes.items()
        }
        self.held_names = HeldNames(ReconnectingConnection(address, KEYED), self._write_names)

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        """Carry out the ops, and return their answers in the same order."""
        if len(set(map(type, ops))) == 1:
            return self._apply(_committer_for(ops), ops)
        answers: Answers = [None] * len(ops)
        for part in _parts(ops):
            spread(self._apply(part.committer, part.ops), part.places, answers)
        return answers

    def submit(self, ops: Sequence[AnyOp], done: Done) -> None:
        """Carry out the ops on the committers' own threads, one part after the other."""
        if len(set(map(type, ops))) == 1:
            self._submit(_committer_for(ops), ops, done)
        else:
            self._submit_parts(_parts(ops), [None] * len(ops), done)

    def close(self) -> None:
        """Write the queued ops, end all threads and close the connections."""
        for committer in self._committers.values():
            committer.close()
        self.hints.close()
        self._sweeper.close()
        for line in self._lines.values():
            line.close()
        self.held_names.close()

    def _apply(self, committer: str, ops: Sequence[Op[A]]) -> list[A]:
        try:
            return self._write(committer, ops)
        except NameHeld:
            return self.held_names.wait(ops)

    def _write(self, committer: str, ops: Sequence[Op[A]]) -> list[A]:
        return self._committers[committer].apply(ops)

    def _submit(self, committer: str, ops: Sequence[AnyOp], done: Done) -> None:
        def written(outcome: Answers | BaseException) -> None:
            if isinstance(outcome, NameHeld):
                self.held_names.wait_on_shared_thread(ops, written)
            else:
                done(outcome)

        self._committers[committer].submit(ops, written)

    def _submit_parts(self, parts: list[_WritePart], answers: Answers, done: Done) -> None:
        if not parts:
            done(answers)
            return
        part, *rest = parts

        def written(outcome: Answers | BaseException) -> None:
            if isinstance(outcome, BaseException):
                done(outcome)
            else:
                spread(outcome, part.places, answers)
                self._submit_parts(rest, answers, done)

        self._submit(part.committer, part.ops, written)

    def _enqueue(self, ops: list[Any]) -> Answers:
        faultpoints.hit("enqueue.before_write")
        # One statement is one transaction here, so the run is not yet committed at this point.
        faultpoints.hit("enqueue.before_commit")
        said = hints_of(ops)
        answers, is_told = enqueue(self._lines["enqueue"], ops, self.hints, said)
        faultpoints.hit("enqueue.after_commit")
        (self.hints.send_here if is_told else self.hints.send)(said)
        return answers

    def _enqueue_keyed(self, ops: list[Any]) -> Answers:
        if self.held_names.is_held(ops):
            raise NameHeld
        return self._write_names(self._lines["keyed"], ops)

    def _write_names(self, line: ReconnectingConnection, written: Sequence[Any]) -> Answers:
        """Write ops that an open transaction may block. They wait here only for a short time."""
        answers: Answers = [None] * len(written)
        renewals = [place for place, op in enumerate(written) if isinstance(op, RENEWALS)]
        others = [place for place, op in enumerate(written) if not isinstance(op, RENEWALS)]
        try:
            for places, write in ((renewals, self._renew), (others, self._write_named)):
                found = write(line, [written[place] for place in places]) if places else []
                spread(found, places, answers)
        except StoreBusy as error:
            if isinstance(error.__cause__, LockNotAvailable):
                self.held_names.note_held(written)
                raise NameHeld from error
            raise
        return answers

    def _write_named(self, line: ReconnectingConnection, written: Sequence[Any]) -> Answers:
        points = {"operate" if isinstance(op, SendEvent) else "enqueue" for op in written}

        def write(session: PostgresSession, named: Sequence[Any] = written) -> Answers:
            _hit(points, "before_write")
            answers = _named(session, named)
            _hit(points, "before_commit")
            return answers

        answers = line.transact(write, lambda session: write(session, as_repeatable(written)))
        _hit(points, "after_commit")
        # An event has no run to name. Its hint makes a worker look for runs that wait for events.
        self.hints.send(hints_of(written) if points == {"enqueue"} else ())
        return answers

    def _renew(self, line: ReconnectingConnection, written: Sequence[Any]) -> Answers:
        def write(session: PostgresSession, _lost: bool) -> Answers:  # noqa: FBT001 - as `run` calls it
            return [carry_out(LoneStatements(session), op) for op in written]

        _hit(["operate"], "before_write")
        _hit(["operate"], "before_commit")
        answers = line.run(write)
        _hit(["operate"], "after_commit")
        return answers

    def _settle(self, ops: list[Any]) -> Answers:
        faultpoints.hit("settle.before_write")
        faultpoints.hit("settle.before_commit")
        answers = settle_alone(self._lines["settle"], ops)
        faultpoints.hit("settle.after_commit")
        if any(type(op.verdict) is not Finish for op in ops):
            self.hints.send()
        return answers

    def _claim(self, written: list[Any]) -> Answers:
        answers: Answers = [None] * len(written)
        claims = [place for place, op in enumerate(written) if isinstance(op, ClaimRuns)]
        carried = [place for place, op in enumerate(written) if isinstance(op, ClaimCarried)]
        if len(claims) + len(carried) < len(written):
            self._hand_back(written, answers)
        if claims or carried:
            faultpoints.hit("claim.before_write")
            faultpoints.hit("claim.before_commit")
            for place in carried:
                answers[place] = self._claimer.claim_carried(written[place])
            if claims:
                found = self._claimer.claim([written[place] for place in claims])
                spread(found, claims, answers)
            faultpoints.hit("claim.after_commit")
        return answers

    def _hand_back(self, written: list[Any], answers: Answers) -> None:
        """Hand runs back on the connection of the claims, so that no claim overlaps with it."""

        def write(session: PostgresSession) -> None:
            faultpoints.hit("recover.before_write")
            for place, op in enumerate(written):
                if isinstance(op, HandBackUnknown):
                    answers[place] = carry_out(PostgresTransaction(session), op)
            faultpoints.hit("recover.before_commit")

        self._lines["claim"].transact(write)
        faultpoints.hit("recover.after_commit")
        if any(answers):
            self.hints.send()

    def _operate(self, written: list[Any]) -> Answers:
        answers: Answers = [None] * len(written)
        for places in _transactions(written):
            found = self._operate_together([written[place] for place in places])
            spread(found, places, answers)
        return answers

    def _operate_together(self, written: list[Any]) -> Answers:
        points = {FACTS[type(op)].fault for op in written}
        answers: Answers = [None] * len(written)
        # All transactions lock runs in the order of their ids, as ticks do.
        in_lock_order = sorted(enumerate(written), key=lambda each: _lock_order(each[1]))

        def write(session: PostgresSession) -> None:
            _hit(points, "before_write")
            for place, op in in_lock_order:
                answers[place] = self._carry_out(session, op)
            _hit(points, "before_commit")

        self._lines["operate"].transact(write)
        _hit(points, "after_commit")
        for place, answer in enumerate(answers):
            if isinstance(answer, Ticked):
                self._sweeper.look(answer.dead_rows)
                answers[place] = answer._replace(dead_rows=0)
        if makes_ready(written, answers):
            self.hints.send()
        return answers

    def _carry_out(self, session: PostgresSession, op: Any) -> object:  # noqa: ANN401
        try:
            return carry_out(PostgresTransaction(session), op)
        except LockNotAvailable as error:
            raise OpBlocked(str(translated(error, self._address)), op) from error


def _parts(written: Sequence[AnyOp]) -> list[_WritePart]:
    """Divide the ops by the committer that writes them, in the order of their phases."""
    phases = [FACTS[type(op)].phase for op in written]
    parts = []
    for phase in sorted(set(phases)):
        places = [place for place, found in enumerate(phases) if found == phase]
        own = [written[place] for place in places]
        parts.append(_WritePart(_committer_for(own), places, own))
    return parts


def _committer_for(written: Sequence[AnyOp]) -> str:
    """Return the name of the committer that writes ops of one phase."""
    name = COMMITTERS[FACTS[type(written[0])].phase]
    if name == "enqueue" and any(not isinstance(op, Enqueue) or op.key for op in written):
        # Ops that were submitted together are written together.
        return "keyed"
    return name


def _lock_order(op: AnyOp) -> tuple[Phase, str, str]:
    """Return the place of an op in a transaction: all transactions lock rows in one order.

    Ops about the same row keep the order of the call.
    """
    field = _LOCKED_ROWS.get(type(op), "run_id")
    return FACTS[type(op)].phase, str(getattr(op, field, "")), field


def _transactions(written: Sequence[AnyOp]) -> list[list[int]]:
    """Return the places of the ops that share a transaction, in the order of the ops."""
    found: list[list[int]] = [[]]
    for place, op in enumerate(written):
        if is_alone(op):
            found += [[place], []]
        else:
            found[-1].append(place)
    return [places for places in found if places]


def _named(session: PostgresSession, written: Sequence[Any]) -> Answers:
    """Write enqueues and events. All transactions take keys first, then events, each in order."""
    answers: Answers = [None] * len(written)
    enqueues = [place for place, op in enumerate(written) if isinstance(op, Enqueue)]
    accepted = enqueue_keyed(session, [written[place] for place in enqueues])
    spread(accepted, enqueues, answers)
    events = [place for place, op in enumerate(written) if isinstance(op, SendEvent)]
    for place in sorted(events, key=lambda place: written[place].name):
        answers[place] = carry_out(PostgresTransaction(session), written[place])
    return answers


def _hit(points: Iterable[str], where: str) -> None:
    for point in points:
        faultpoints.hit(f"{point}.{where}")

"""Who writes what: one committer with a connection of its own for each kind of traffic.

Enqueues, claims, settles and the rest overlap on the server and never wait for one another here.
Keyed enqueues and events go apart from the others, since a caller's open transaction may hold a key
or have sent the same event. Renewals of locks go with them: nothing there waits for long.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from psycopg.errors import LockNotAvailable

from duly import faultpoints
from duly.core.verdict import Finish
from duly.errors import StoreBusy
from duly.store import carrier_ops, ops, step_ops
from duly.store.group_commit import Committer, Done, OpBlocked
from duly.store.hints import hints_of
from duly.store.op_sizes import size_of
from duly.store.ops import Op
from duly.store.outage_wait import as_repeatable
from duly.store.postgres import maintenance, steps
from duly.store.postgres.address import Address
from duly.store.postgres.claim import PostgresClaims
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.enqueue import enqueue, enqueue_keyed
from duly.store.postgres.failures import translated
from duly.store.postgres.held_names import HeldNames, NameHeld
from duly.store.postgres.op_tables import (
    COMMITTERS,
    OPERATIONS,
    OWN_TRANSACTION_OPS,
    RENEWALS,
    TURNS,
    WAKING,
    WAKING_IF_FOUND,
    Verb,
)
from duly.store.postgres.reconnecting_connection import ReconnectingConnection, WriteFailureRecord
from duly.store.postgres.session_settings import HOT, KEYED, UPKEEP
from duly.store.postgres.settle import settle_alone
from duly.store.postgres.vacuum import VacuumThread
from duly.store.postgres.wakeup import PostgresHints


class _WritePart(NamedTuple):
    committer: str
    places: list[int]
    ops: list[Op]


class WritePaths:
    """All that one process writes with."""

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
                alone=OWN_TRANSACTION_OPS if name == "operate" else (),
                size_of=size_of,
            )
            for name, write in self._writes.items()
        }
        self.held_names = HeldNames(ReconnectingConnection(address, KEYED), self._write_names)

    def apply(self, ops: Sequence[Op]) -> list[Any]:
        """Write the ops and return their answers, in order."""
        if len(set(map(type, ops))) == 1:
            return self._apply(_committer_for(TURNS[type(ops[0])], ops), ops)
        answers: list[Any] = [None] * len(ops)
        for part in _parts(ops):
            _spread(self._apply(part.committer, part.ops), part.places, answers)
        return answers

    def submit(self, ops: Sequence[Op], done: Done) -> None:
        """Write the ops from the committers' own threads, one part after the other."""
        if len(set(map(type, ops))) == 1:
            self._submit(_committer_for(TURNS[type(ops[0])], ops), ops, done)
        else:
            self._submit_parts(_parts(ops), [None] * len(ops), done)

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

    def _submit(self, committer: str, ops: Sequence[Op], done: Done) -> None:
        def written(outcome: list[Any] | BaseException) -> None:
            if isinstance(outcome, NameHeld):
                self.held_names.wait_on_shared_thread(ops, written)
            else:
                done(outcome)

        self._committers[committer].submit(ops, written)

    def _submit_parts(self, parts: list[_WritePart], answers: list[Any], done: Done) -> None:
        if not parts:
            done(answers)
            return
        part, *rest = parts

        def written(outcome: list[Any] | BaseException) -> None:
            if isinstance(outcome, BaseException):
                done(outcome)
            else:
                _spread(outcome, part.places, answers)
                self._submit_parts(rest, answers, done)

        self._submit(part.committer, part.ops, written)

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

    def _write_names(self, line: ReconnectingConnection, written: Sequence[Any]) -> list[Any]:
        """Write what a transaction that is still open may hold up; nothing waits here for long."""
        answers: list[Any] = [None] * len(written)
        renewals = [place for place, op in enumerate(written) if type(op) in RENEWALS]
        others = [place for place, op in enumerate(written) if type(op) not in RENEWALS]
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

    def _write_named(self, line: ReconnectingConnection, written: Sequence[Any]) -> list[Any]:
        points = {"operate" if isinstance(op, step_ops.SendEvent) else "enqueue" for op in written}

        def write(session: PostgresSession, named: Sequence[Any] = written) -> list[Any]:
            _hit(points, "before_write")
            answers = _named(session, named)
            _hit(points, "before_commit")
            return answers

        answers = line.transact(
            write, lambda session: write(session, as_repeatable(written)), writes=True
        )
        _hit(points, "after_commit")
        # An event is for a look at what waits, which makes runs ready.
        self.hints.send(hints_of(written) if points == {"enqueue"} else ())
        return answers

    def _renew(self, line: ReconnectingConnection, written: Sequence[Any]) -> list[Any]:
        def write(session: PostgresSession, _lost: bool) -> list[Any]:  # noqa: FBT001 - as `run` calls it
            return [RENEWALS[type(op)](session, op) for op in written]

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
            place for place, op in enumerate(written) if isinstance(op, carrier_ops.ClaimCarried)
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

        def write(session: PostgresSession) -> None:
            faultpoints.hit("recover.before_write")
            for place, op in enumerate(written):
                if isinstance(op, ops.HandBackUnknown):
                    answers[place] = maintenance.hand_back_unknown(session, op)
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
        order = [kind for kind in OPERATIONS if kind in kinds]
        answers: list[Any] = [None] * len(written)
        # All transactions lock runs in the order of their ids, as ticks do.
        by_run = sorted(enumerate(written), key=lambda each: str(getattr(each[1], "run_id", "")))

        def write(session: PostgresSession) -> None:
            for kind in order:
                point, verb = OPERATIONS[kind]
                faultpoints.hit(f"{point}.before_write")
                for place, op in by_run:
                    if type(op) is kind:
                        answers[place] = self._carry_out(verb, session, op)
                faultpoints.hit(f"{point}.before_commit")

        self._lines["operate"].transact(write)
        for kind in order:
            faultpoints.hit(f"{OPERATIONS[kind][0]}.after_commit")
        if ops.Tick in kinds:
            self._sweep_after_ticks(answers)
        pairs = zip(written, answers, strict=True)
        has_found = any(answer for op, answer in pairs if isinstance(op, WAKING_IF_FOUND))
        if not kinds.isdisjoint(WAKING) or has_found:
            self.hints.send()
        return answers

    def _carry_out(self, verb: Verb, session: PostgresSession, op: Any) -> Any:  # noqa: ANN401
        try:
            return verb(session, op) if maintenance.has_turn(session, op) else None
        except LockNotAvailable as error:
            raise OpBlocked(str(translated(error, self._address)), op) from error

    def _sweep_after_ticks(self, answers: list[Any]) -> None:
        for place, answer in enumerate(answers):
            if isinstance(answer, maintenance.TickResult):
                self._sweeper.look(answer.dead_rows)
                answers[place] = answer.ticked


def _parts(written: Sequence[Op]) -> list[_WritePart]:
    """Part the ops by who writes them, in the order of their turns."""
    turns = [TURNS[type(op)] for op in written]
    parts = []
    for turn in sorted(set(turns)):
        places = [place for place, found in enumerate(turns) if found == turn]
        own = [written[place] for place in places]
        parts.append(_WritePart(_committer_for(turn, own), places, own))
    return parts


def _committer_for(turn: int, written: Sequence[Op]) -> str:
    name = COMMITTERS[turn]
    if name == "enqueue" and any(not isinstance(op, ops.Enqueue) or op.key for op in written):
        # What was asked for together is written together.
        return "keyed"
    return name


def _transactions(written: Sequence[Op]) -> list[list[int]]:
    """Return which ops share a transaction, by their places, in the order of the ops."""
    found: list[list[int]] = [[]]
    for place, op in enumerate(written):
        if isinstance(op, OWN_TRANSACTION_OPS):
            found += [[place], []]
        else:
            found[-1].append(place)
    return [places for places in found if places]


def _named(session: PostgresSession, written: Sequence[Any]) -> list[Any]:
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

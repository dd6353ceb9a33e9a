"""The write paths of a process: three connections, each with a committer.

Claims and settles have a connection each, so they overlap on the server. All other writes share
*work*: enqueues, events, steps, locks, operator actions and services. They wait there for one
another, so none of them may take long. A write that meets a name that a caller's open transaction
holds, such as a key, gives up after a moment and is tried again later. Renewals of locks and keys
do the same. Each kind of write has its own commits: plain enqueues are one statement.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from psycopg.errors import LockNotAvailable, QueryCanceled

from duly import faultpoints
from duly.core.verdict import Finish
from duly.errors import StoreBusy
from duly.store.group_commit import Answers, Committer, Done, OpBlocked, OpCutOff, Write, WriteKind
from duly.store.hints import hints_of
from duly.store.ops.carriers import ClaimCarried
from duly.store.ops.op import FACTS, A, AnyOp, Op, is_alone, makes_ready, size_of, spread
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
from duly.store.postgres.session_settings import (
    HOT,
    SERVICE_WAIT_MILLISECONDS,
    TRY_MILLISECONDS,
    WORK,
)
from duly.store.postgres.settle import settle_alone
from duly.store.postgres.transaction import LoneStatements, PostgresTransaction
from duly.store.postgres.vacuum import VacuumThread
from duly.store.postgres.wakeup import PostgresHints, notify_soon
from duly.store.postgres.write_routing import (
    RENEWALS,
    SERVICES,
    Use,
    WritePart,
    lock_order,
    parts_of,
    path_of,
    transactions_of,
)
from duly.store.verbs.verb import carry_out, is_bounded

_CONNECTIONS = {"work": WORK, "claim": HOT, "settle": HOT}
"""The connections, with their settings."""
_CONNECTION_OF = {"claim": "claim", "settle": "settle"}
"""The connections of paths. All others use "work"."""
_WITH_LONE_OPS = {"operate", "serve"}
"""The paths on which some ops share no commit."""

T = TypeVar("T")


class WritePaths:
    """All committers and connections that one process writes with."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.hints = PostgresHints(address, self._notify)
        self._sweeper = VacuumThread(address)
        self.record = record = WriteFailureRecord()
        self._lines = {
            name: ReconnectingConnection(address, settings, record)
            for name, settings in _CONNECTIONS.items()
        }
        self._claimer = PostgresClaims(self._lines["claim"])
        self._is_closed = False
        self._writes: dict[str, Write] = {
            "enqueue": self._enqueue,
            "keyed": self._enqueue_keyed,
            "claim": self._claim,
            "settle": self._settle,
            "operate": self._operate,
            "serve": self._operate,
        }
        self._committers = {name: self._committer(name) for name in self._lines}
        self.held_names = HeldNames(address.shown_url, partial(self._write, "keyed"))

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        """Carry out the ops, and return their answers in the same order."""
        if len(set(map(type, ops))) == 1:
            return self._apply(path_of(ops), ops)
        answers: Answers = [None] * len(ops)
        for part in parts_of(ops):
            spread(self._apply(part.path, part.ops), part.places, answers)
        return answers

    def submit(self, ops: Sequence[AnyOp], done: Done) -> None:
        """Carry out the ops on the committers' own threads, one part after the other."""
        if len(set(map(type, ops))) == 1:
            self._submit(path_of(ops), ops, done)
        else:
            self._submit_parts(parts_of(ops), [None] * len(ops), done)

    def read(self, connection: str, query: Callable[[PostgresSession], T]) -> T:
        """Read something in a short time, on a connection that this process needs anyway."""
        return self._use(connection, lambda line: line.run(lambda at, _: query(at), is_read=True))

    def disconnect(self) -> None:
        """Close the connections that are open. The next use opens them again."""
        for name in self._lines:
            self._use(name, ReconnectingConnection.close)

    def close(self) -> None:
        """Write the queued ops, end all threads and close the connections."""
        for committer in self._committers.values():
            committer.close()
        self._is_closed = True
        self.hints.close()
        self._sweeper.close()
        for line in self._lines.values():
            line.close()

    def _committer(self, connection: str) -> Committer:
        """Return the committer of a connection: each path on it is a kind of its own."""
        paths = [path for path in self._writes if _CONNECTION_OF.get(path, "work") == connection]
        kinds = {
            path: WriteKind(self._writes[path], is_alone if path in _WITH_LONE_OPS else None)
            for path in paths
        }
        kinds["use"] = WriteKind(partial(self._use_line, connection), lambda _use: True)
        return Committer(kinds, name=f"duly-{connection}", size_of=size_of)

    def _use_line(self, connection: str, uses: list[Any]) -> Answers:
        return [use.work(self._lines[connection]) for use in uses]

    def _use(self, connection: str, work: Callable[[ReconnectingConnection], T]) -> T:
        use: Any = Use(work)
        (answer,) = self._committers[connection].apply([use], "use")
        return cast("T", answer)

    def _notify(self, payload: str) -> None:
        def send(line: ReconnectingConnection) -> None:
            line.run(lambda session, _: notify_soon(session, payload), is_read=True)

        if self._is_closed:
            # No other thread uses the connection any more.
            send(self._lines["work"])
        else:
            self._use("work", send)

    def _apply(self, path: str, ops: Sequence[Op[A]]) -> list[A]:
        try:
            return self._write(path, ops)
        except NameHeld:
            return self.held_names.wait(ops)

    def _write(self, path: str, ops: Sequence[Op[A]]) -> list[A]:
        return self._committer_of(path).apply(ops, path)

    def _committer_of(self, path: str) -> Committer:
        return self._committers[_CONNECTION_OF.get(path, "work")]

    def _submit(self, path: str, ops: Sequence[AnyOp], done: Done) -> None:
        def written(outcome: Answers | BaseException) -> None:
            if isinstance(outcome, NameHeld):
                self.held_names.wait_on_shared_thread(ops, written)
            else:
                done(outcome)

        self._committer_of(path).submit(ops, written, path)

    def _submit_parts(self, parts: list[WritePart], answers: Answers, done: Done) -> None:
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

        self._submit(part.path, part.ops, written)

    def _enqueue(self, ops: list[Any]) -> Answers:
        faultpoints.hit("enqueue.before_write")
        # One statement is one transaction here, so the run is not yet committed at this point.
        faultpoints.hit("enqueue.before_commit")
        said = hints_of(ops)
        answers, is_told = enqueue(self._lines["work"], ops, self.hints, said)
        faultpoints.hit("enqueue.after_commit")
        (self.hints.send_here if is_told else self.hints.send)(said)
        return answers

    def _enqueue_keyed(self, written: list[Any]) -> Answers:
        """Write ops that an open transaction may block. They wait here only for a moment."""
        if self.held_names.is_held(written):
            raise NameHeld
        answers: Answers = [None] * len(written)
        renewals = [place for place, op in enumerate(written) if isinstance(op, RENEWALS)]
        others = [place for place, op in enumerate(written) if not isinstance(op, RENEWALS)]
        try:
            for places, write in ((renewals, self._renew), (others, self._write_named)):
                found = write([written[place] for place in places]) if places else []
                spread(found, places, answers)
        except StoreBusy as error:
            if isinstance(error.__cause__, LockNotAvailable):
                self.held_names.note_held(written)
                raise NameHeld from error
            raise
        return answers

    def _write_named(self, written: Sequence[Any]) -> Answers:
        points = {"operate" if isinstance(op, SendEvent) else "enqueue" for op in written}

        def write(session: PostgresSession, named: Sequence[Any] = written) -> Answers:
            _hit(points, "before_write")
            answers = _named(session, named)
            _hit(points, "before_commit")
            return answers

        answers = self._lines["work"].transact(
            write,
            lambda session: write(session, as_repeatable(written)),
            wait_milliseconds=TRY_MILLISECONDS,
        )
        _hit(points, "after_commit")
        # An event has no run to name. Its hint makes a worker look for runs that wait for events.
        self.hints.send(hints_of(written) if points == {"enqueue"} else ())
        return answers

    def _renew(self, written: Sequence[Any]) -> Answers:
        def write(session: PostgresSession, _lost: bool) -> Answers:  # noqa: FBT001 - as `run` calls it
            return [carry_out(LoneStatements(session), op) for op in written]

        _hit(["operate"], "before_write")
        _hit(["operate"], "before_commit")
        answers = self._lines["work"].run(write)
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
        for places in transactions_of(written):
            found = self._operate_together([written[place] for place in places])
            spread(found, places, answers)
        return answers

    def _operate_together(self, written: list[Any]) -> Answers:
        points = {FACTS[type(op)].fault for op in written}
        answers: Answers = [None] * len(written)
        # All transactions lock runs in the order of their ids, as ticks do.
        in_lock_order = sorted(enumerate(written), key=lambda each: lock_order(each[1]))

        def write(session: PostgresSession) -> None:
            _hit(points, "before_write")
            for place, op in in_lock_order:
                answers[place] = self._carry_out(session, op)
            _hit(points, "before_commit")

        wait = SERVICE_WAIT_MILLISECONDS if isinstance(written[0], SERVICES) else None
        self._lines["work"].transact(write, wait_milliseconds=wait)
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
        except QueryCanceled as error:
            if not is_bounded(op):
                raise
            raise OpCutOff(str(translated(error, self._address))) from error


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

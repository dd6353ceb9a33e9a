"""Claims runs. This is the only module that makes a run running."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg

from duly.core.record import Claim, Claims, fast_constructor
from duly.limits import TRANSACTION_BYTES
from duly.store.ops.carriers import ClaimCarried
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.postgres.arrays import numbers, optional_texts, texts
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.failures import is_fatal
from duly.store.postgres.limited_claims import (
    PostgresLimitedClaim,
    bytes_of_rows,
    take_carried_from_queue,
)
from duly.store.postgres.reconnecting_connection import ReconnectingConnection
from duly.store.statements import load

SQL = load("postgres", "claim")

_ANNOUNCED = "(SELECT pg_catalog.pg_notify(duly_channel(), %(announcement)s)) AS announced"
"""A further column of `take`. It does not depend on the row, so it is evaluated at most once."""

_Row = tuple[Any, ...]

_claim = fast_constructor(Claim)
_LANE = Claim._fields.index("lane")


class PostgresClaims:
    """Claims for the workers of this process.

    Every claim of a worker has a later `claimed_at` than all claims that the worker knows of. After
    a lost connection, the runs that the worker holds since then are those of the last claim.
    """

    def __init__(self, line: ReconnectingConnection) -> None:
        self._line = line
        self._claimed_at: dict[str, int] = {}
        """The time of the latest claim whose answer arrived, by worker."""
        self._in_doubt: set[str] = set()

    def claim(self, ops: Sequence[ClaimRuns]) -> list[Claims]:
        """Claim ready runs, lane by lane, alternating queues, in one transaction for all ops."""
        return self._line.run(lambda session, _: self._claim(session, ops))

    def _claim(self, session: PostgresSession, ops: Sequence[ClaimRuns]) -> list[Claims]:
        workers = sorted({op.worker_id for op in ops})
        for worker_id in workers:
            if worker_id not in self._claimed_at:
                self._claimed_at[worker_id] = _latest_claim(session, worker_id)
        if self._in_doubt:
            found = self._read_back(session, ops)
            if found is not None:
                return found
        self._in_doubt.update(workers)
        rooms = [[want.limit for want in op.wants] for op in ops]
        rows: list[list[_Row]] = [[] for _ in ops]
        looks = [
            self._take_limited(session, op, room, own, first=True)
            for op, room, own in zip(ops, rooms, rows, strict=True)
        ]
        self._take_ready(session, ops, rooms, rows)
        for place, op in enumerate(ops):
            last = self._take_limited(session, op, rooms[place], rows[place], first=False)
            looks[place] = looks[place] or last
        self._in_doubt.difference_update(workers)
        answers = [self._claims(op, own) for op, own in zip(ops, rows, strict=True)]
        for answer, look in zip(answers, looks, strict=True):
            if look is not None:
                answer.limit, answer.has_more_limits = look
        return answers

    def _take_ready(
        self,
        session: PostgresSession,
        ops: Sequence[ClaimRuns],
        rooms: list[list[int]],
        rows: list[list[_Row]],
    ) -> None:
        """Take runs that count against no limit."""
        rounds = [
            (place, wants)
            for place, op in enumerate(ops)
            for wants in _rounds(_with_rooms(op.wants, rooms[place]))
        ]
        if not rounds:
            return
        columns = [
            self._columns(ops[place], wants, most=_bytes_left(rows[place]) // len(rounds))
            for place, wants in rounds
        ]
        announcement = ops[0].announcement if len(ops) == 1 else None
        found = _take(session, columns, announcement)
        for (place, _), taken in zip(rounds, found, strict=True):
            rows[place] += taken
            got = Counter(row[_LANE] for row in taken)
            rooms[place][:] = [
                room - got[want.lane]
                for room, want in zip(rooms[place], ops[place].wants, strict=True)
            ]

    def _take_limited(
        self,
        session: PostgresSession,
        op: ClaimRuns,
        rooms: list[int],
        rows: list[_Row],
        *,
        first: bool,
    ) -> tuple[str | None, bool] | None:
        """Take runs that count against limits, if it is their turn, in a separate transaction.

        Return the last limit that was checked, and whether there may be more limits.
        """
        if op.limits is None or op.limits.is_first != first:
            return None
        last, bytes_left = self._claimed_at[op.worker_id], _bytes_left(rows)
        limited = PostgresLimitedClaim(session, op, op.limits, last, bytes_left=bytes_left)
        met = limited.take(rooms)
        rows += limited.rows
        return met, limited.has_more

    def claim_carried(self, op: ClaimCarried) -> Claim | None:
        """Claim one run that was handed over, if it still waits for this claim."""

        def take(session: PostgresSession, lost: bool) -> list[_Row]:  # noqa: FBT001 - as `run` calls it
            place = op._asdict() | {"counted": False, "last": "0"}
            found = session.execute(SQL["carried"], place).fetchall() if lost else []
            return (
                found
                or session.execute_alone(SQL["take_carried"], place)
                or take_carried_from_queue(session, place)
            )

        rows = self._line.run(take)
        return _claim(rows[0]) if rows else None

    def _columns(self, op: ClaimRuns, wants: Sequence[Want], *, most: int) -> dict[str, Any]:
        return {
            "worker_id": op.worker_id,
            "after_queue": op.after_queue,
            "tasks": texts(op.tasks),
            "excluded": texts(op.excluded),
            "last": str(self._claimed_at[op.worker_id]),
            "queues": optional_texts([want.queue for want in wants]),
            "lanes": texts([want.lane for want in wants]),
            "limits": numbers(want.limit for want in wants),
            "bytes": str(most),
        }

    def _read_back(self, session: PostgresSession, ops: Sequence[ClaimRuns]) -> list[Claims] | None:
        """Return the runs of a claim whose reply was lost, or None if it took no run."""
        rest = {op.worker_id for op in ops} & self._in_doubt
        answers: list[Claims] = []
        for op in ops:
            rows = []
            if op.worker_id in rest:
                rest.remove(op.worker_id)
                place = {"worker_id": op.worker_id, "last": str(self._claimed_at[op.worker_id])}
                rows = session.execute(SQL["taken"], place).fetchall()
            answers.append(self._claims(op, rows))
            self._in_doubt.discard(op.worker_id)
        return answers if any(answers) else None

    def _claims(self, op: ClaimRuns, rows: list[_Row]) -> Claims:
        if not rows:
            return Claims()
        newest = max(row[-1] for row in rows)
        self._claimed_at[op.worker_id] = max(self._claimed_at[op.worker_id], newest)
        claims = Claims(map(_claim, rows))
        claims.sort(key=_urgency)
        claims.is_cut = _bytes_left(rows) <= 0
        return claims


def _take(
    session: PostgresSession, columns: list[dict[str, Any]], announcement: str | None
) -> list[list[_Row]]:
    """Return the rows that each statement took, in one transaction for all."""
    if len(columns) == 1 and announcement is not None:
        return [_take_and_announce(session, columns[0], announcement)]
    if len(columns) == 1:
        return [session.execute_alone(SQL["take"], columns[0])]
    with session.pipeline():
        session.begin()
        cursors = [session.execute(SQL["take"], each) for each in columns]
        session.commit_now()
    return [cursor.fetchall() for cursor in cursors]


def _take_and_announce(
    session: PostgresSession, columns: dict[str, Any], announcement: str
) -> list[_Row]:
    """Take runs, and notify listeners if there were any. A notification must never fail a claim."""
    try:
        found = session.execute_alone(
            f"{SQL['take']},\n{_ANNOUNCED}", columns | {"announcement": announcement}
        )
    except psycopg.Error as error:
        if session.closed or is_fatal(error):
            raise
        return session.execute_alone(SQL["take"], columns)
    return [row[:-1] for row in found]


def _bytes_left(rows: list[_Row]) -> int:
    """Return how many bytes of arguments a claim with these rows may still take."""
    return TRANSACTION_BYTES - bytes_of_rows(rows)


def _with_rooms(wants: Sequence[Want], rooms: list[int]) -> list[Want]:
    return [want._replace(limit=room) for want, room in zip(wants, rooms, strict=True)]


def _latest_claim(session: PostgresSession, worker_id: str) -> int:
    row = session.execute(SQL["latest_claim"], {"worker_id": worker_id}).fetchone()
    return int(row[0]) if row is not None else 0


def _urgency(claim: Claim) -> tuple[int, int, str]:
    return -claim.priority, claim.due_at, claim.run_id


def _rounds(wants: Sequence[Want]) -> list[list[Want]]:
    """Separate wants that could find the same run, since one statement would count it for both."""
    rounds: list[list[Want]] = []
    for want in wants:
        if want.limit <= 0:
            continue
        for together in rounds:
            if not any(_overlap(want, other) for other in together):
                together.append(want)
                break
        else:
            rounds.append([want])
    return rounds


def _overlap(one: Want, other: Want) -> bool:
    same_queue = one.queue is None or other.queue is None or one.queue == other.queue
    return same_queue and one.lane == other.lane

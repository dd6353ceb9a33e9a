"""Claims runs that count against a limit of their queue or of their task."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from duly.clock import MICROSECONDS
from duly.core.concurrency_limits import (
    LIMITED_PREFIX,
    ClaimLimits,
    rotated_lanes,
    slot_of,
    task_of,
)
from duly.core.record import Claim
from duly.limits import CLAIM_BATCH, LIMITS_BATCH, RELAY_FULL_SECONDS
from duly.store.ops.runs import ClaimRuns
from duly.store.postgres import floors
from duly.store.postgres.arrays import texts
from duly.store.postgres.connection import PostgresSession
from duly.store.statements import load

SQL = load("postgres", "claim")

_MARGIN_SECONDS = 15.0
"""Floors stay this far before the time of the count, for workers that do not know the limit yet.
If the commit of such a worker's claim takes longer, its runs are not counted for up to 5 s."""

_Row = tuple[Any, ...]
_arguments = itemgetter(Claim._fields.index("arguments"))


class PostgresLimitedClaim:
    """One transaction. It holds the lock of each limit that it counts until its runs are committed.

    Limits of queues are locked first, then those of tasks, each in the order of their names, so
    that two claims cannot deadlock.
    """

    def __init__(
        self,
        session: PostgresSession,
        op: ClaimRuns,
        limits: ClaimLimits,
        last: int,
        *,
        bytes_left: int,
    ) -> None:
        self._session = session
        self._op = op
        self._limits = limits
        self._place = {"worker_id": op.worker_id}
        self._last = last
        """Runs are claimed after this time: the worker's last claim, and the floors of limits."""
        self._locked: set[str] = set()
        self._bytes_left = bytes_left
        """How many bytes of arguments the claim may still take. It takes at least one run."""
        self.rows: list[_Row] = []
        self.has_more = False
        """True if there may be limits of tasks that were not checked."""

    def take(self, rooms: list[int]) -> str | None:
        """Take runs into `rows` up to the free capacity. Return the last limit that was checked."""
        shut = self._op.excluded
        ready = self._session.execute(SQL["limited_queues"]).fetchall()
        found = [row for row in ready if row[0] not in shut]
        lanes, self.has_more = rotated_lanes(self._lanes, self._limits.after)
        if not found and not lanes:
            return None
        met = lanes[-1] if lanes else LIMITED_PREFIX
        self._session.begin()
        known = self._session.execute(SQL["queues"]).fetchall()
        capacities = {
            name: limit
            for name, paused, limit in known
            if limit and not paused and name not in shut
        }
        own = sorted(
            (lane for lane in lanes if task_of(lane) in self._op.tasks),
            key=lambda lane: (self._limits.ranges(lane), lane),
        )
        for queue in sorted(capacities if own else {queue for queue, *_ in found}):
            self._lock(f"queue {queue}")
        for queue, lane, _ in sorted(found):
            self._take_from_queue(queue, lane, capacities, rooms)
        self._take_from_lanes(own, [*(name for name, *_ in known), *shut], capacities, rooms)
        self._session.commit_now()
        return met

    def _lanes(self, after: str) -> list[str]:
        place = {"after": after, "most": LIMITS_BATCH}
        return [row[0] for row in self._session.execute(SQL["limited_lanes"], place).fetchall()]

    def _take_from_queue(
        self, queue: str, lane: str, capacities: Mapping[str, int], rooms: list[int]
    ) -> None:
        for place, want in enumerate(self._op.wants):
            if want.lane == lane and want.queue in {None, queue} and rooms[place] > 0:
                room = min(rooms[place], self._room_in_queue(queue, capacities))
                where = {"queue": queue, "lane": lane, "tasks": texts(self._op.tasks)}
                rooms[place] -= self._take(SQL["take_from_queue"], where, room)

    def _take_from_lanes(
        self, lanes: list[str], known: list[str], capacities: Mapping[str, int], rooms: list[int]
    ) -> None:
        for lane in lanes:
            for place, want in enumerate(self._op.wants):
                if want.lane != slot_of(lane):
                    continue
                queues: list[str | None] = [None, *capacities]
                for queue in queues if want.queue is None else [want.queue]:
                    if rooms[place] <= 0:
                        break
                    room, closed = min(rooms[place], self._room_in(lane)), known
                    if queue is not None and queue in capacities:
                        room, closed = min(room, self._room_in_queue(queue, capacities)), []
                    where = {"queue": queue, "lane": lane, "closed": texts(closed)}
                    rooms[place] -= self._take(SQL["take_limited"], where, room)

    def _take(self, sql: str, where: Mapping[str, Any], room: int) -> int:
        if room <= 0 or (self.rows and self._bytes_left <= 0):
            return 0
        bounds = {"room": room, "bytes": max(1, self._bytes_left), "last": str(self._last)}
        found = self._session.execute(sql, {**self._place, **where, **bounds}).fetchall()
        self.rows += found
        self._bytes_left -= bytes_of_rows(found)
        return len(found)

    def _room_in_queue(self, queue: str, capacities: Mapping[str, int]) -> int:
        count = self._count(SQL["running_in_queue"], {"queue": queue}, name=f"queue {queue}")
        return capacities.get(queue, 0) - count.number

    def _room_in(self, lane: str) -> int:
        capacity = self._limits.capacities.get(task_of(lane))
        if capacity is None:
            return CLAIM_BATCH
        names = [low for low, _ in self._limits.ranges(lane)]
        # Count first without the lock. A claim needs it only if there is room, or to write a floor.
        counts = [self._count_task(name) for name in names]
        if capacity <= sum(each.number for each in counts) and not any(
            each.needs_floor for each in counts
        ):
            return 0
        # Lock each name of the task. A process that does not know a new name locks the old one.
        for name in names:
            self._lock(name)
        return capacity - sum(self._count_task(name).number for name in names)

    def _count_task(self, name: str) -> "RunningCount":
        return self._count(SQL["running_in_limit"], {"name": name}, name=name)

    def _lock(self, name: str) -> None:
        if name not in self._locked:
            self._session.execute(SQL["lock_limit"], {"name": name})
            self._locked.add(name)

    def _count(self, sql: str, place: Mapping[str, str], *, name: str) -> "RunningCount":
        counted = count_running(self._session, sql, place)
        self._last = max(self._last, counted.floor)
        if counted.needs_floor and name in self._locked:
            note_floor(self._session, name, counted)
        return counted


class RunningCount(NamedTuple):
    """The number of running runs of a limit."""

    number: int
    floor: int
    """No running run of the limit was claimed before this time. 0 if that is unknown."""
    oldest: int | None
    needs_floor: bool
    """True if the count took long without a floor, or if the floor's clock was ahead."""


def count_running(session: PostgresSession, sql: str, place: Mapping[str, str]) -> RunningCount:
    """Count the running runs of a limit."""
    (found,) = session.execute(sql, place).fetchall()
    number, floor, in_force, is_ahead, oldest, took = found
    is_slow = not in_force and took > floors.SLOW_SECONDS * MICROSECONDS
    # A floor of a clock that was ahead is written again, and claims need not be later than it.
    return RunningCount(number, 0 if is_ahead else floor or 0, oldest, is_slow or is_ahead)


def note_floor(session: PostgresSession, name: str, counted: RunningCount) -> None:
    """Let later counts of a limit start at its oldest run. The caller holds the limit's lock."""
    margin = round(_MARGIN_SECONDS * MICROSECONDS)
    place = {"name": name, "oldest": counted.oldest, "margin": margin}
    session.execute(SQL["note_limit_floor"], place)


def bytes_of_rows(rows: Iterable[_Row]) -> int:
    """Return the size of the arguments of claimed rows, in bytes."""
    return sum(map(len, map(str.encode, map(_arguments, rows))))


def take_carried_from_queue(session: PostgresSession, place: Mapping[str, Any]) -> list[_Row]:
    """Take a run that was handed over and whose queue has a limit, if the queue has room."""
    found = session.execute(SQL["queue_of_carried"], place).fetchone()
    if found is None:
        return []
    queue, limit = found
    session.begin()
    session.execute(SQL["lock_limit"], {"name": f"queue {queue}"})
    counted = count_running(session, SQL["running_in_queue"], {"queue": queue})
    if counted.needs_floor:
        note_floor(session, f"queue {queue}", counted)
    rows: list[_Row] = []
    if counted.number < limit:
        taking = {**place, "counted": True, "last": str(counted.floor)}
        rows = session.execute(SQL["take_carried"], taking).fetchall()
    else:
        after = RELAY_FULL_SECONDS * MICROSECONDS
        session.execute(SQL["put_off_handed"], {"run_id": place["run_id"], "after": after})
    session.commit_now()
    return rows

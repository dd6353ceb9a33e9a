"""Claims runs for workers: the only module that makes a run running."""

import json
import sqlite3
from bisect import bisect_left
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

from duly.clock import MICROSECONDS
from duly.core.batches import MOST_BYTES_PER_CHARACTER, bytes_of
from duly.core.concurrency_limits import (
    LIMITED_PREFIX,
    ClaimLimits,
    rotated_lanes,
    slot_of,
    task_of,
)
from duly.core.record import Claim, Claims, fast_constructor
from duly.limits import (
    CLAIM_BATCH,
    LIMITS_BATCH,
    PAYLOAD_BYTES,
    RELAY_FULL_SECONDS,
    TRANSACTION_BYTES,
)
from duly.store.ops.carriers import ClaimCarried
from duly.store.ops.runs import ClaimRuns
from duly.store.statements import load

SQL = load("sqlite", "claim")

_DUE = itemgetter(*map(Claim._fields.index, ("due_at", "run_id")))
_claim = fast_constructor(Claim)
_PRIORITY = itemgetter(Claim._fields.index("priority"))


class ClaimTime(NamedTuple):
    """The time of a claim, and a mark for the runs that it takes, which no other claim has."""

    now: int
    claimed_at: int
    """The mark. It is later than `now` if the clock was set back after an earlier claim."""


def claim(cursor: sqlite3.Cursor, op: ClaimRuns, time: ClaimTime) -> Claims:
    """Claim ready runs for a live worker, lane by lane, and the queues in turn."""
    found = cursor.execute(SQL["ready"], {"worker_id": op.worker_id}).fetchone()[0]
    ready: list[tuple[str, str, int | None]] = json.loads(found)
    ready.sort(key=lambda head: (head[0] <= op.after_queue, head[0]))
    rooms = [want.limit for want in op.wants]
    limit_met = next((LIMITED_PREFIX for *_, limit in ready if limit is not None), None)
    room = _ByteBudget(cursor, op.worker_id, time)
    limited = None if op.limits is None else SqliteLimitedClaim(cursor, op, op.limits, room, time)
    if limited is not None and limited.is_first:
        limit_met = limited.take(rooms) or limit_met
    _take_ready(cursor, op, ready, rooms, room, time)
    if limited is not None and not limited.is_first:
        limit_met = limited.take(rooms) or limit_met
    is_any_taken = sum(rooms) < sum(want.limit for want in op.wants)
    claims = _read(cursor, op.worker_id, time) if is_any_taken else Claims()
    claims.limit = limit_met
    claims.has_more_limits = limited is not None and limited.has_more
    return claims


class _ByteBudget:
    """The number of bytes of arguments that one claim may still take.

    The sizes are added up only after the claim has taken enough runs to reach the bound. So a claim
    of many queues reads few sums. It takes at most twice the bound, plus one run per lane.
    """

    def __init__(self, cursor: sqlite3.Cursor, worker_id: str, time: ClaimTime) -> None:
        self._cursor = cursor
        self._place = {"worker_id": worker_id, "claimed_at": time.claimed_at}
        self._left = TRANSACTION_BYTES
        self._not_summed = 0

    def note(self, count: int) -> int:
        """Record that the claim took `count` more runs, and return that number."""
        self._not_summed += count
        return count

    def left(self) -> int:
        if self._not_summed * PAYLOAD_BYTES >= TRANSACTION_BYTES:
            (taken,) = self._cursor.execute(SQL["bytes_taken"], self._place).fetchone()
            self._left, self._not_summed = TRANSACTION_BYTES - taken, 0
        return self._left


def _take_ready(
    cursor: sqlite3.Cursor,
    op: ClaimRuns,
    ready: list[tuple[str, str, int | None]],
    rooms: list[int],
    bytes_room: _ByteBudget,
    time: ClaimTime,
) -> None:
    """Take runs that count against no limit, or only against the limit of their queue."""
    tasks = json.dumps(op.tasks)
    for place, want in enumerate(op.wants):
        for queue, lane, limit in ready:
            if lane != want.lane or want.queue not in {None, queue} or queue in op.excluded:
                continue
            room, bytes_left = rooms[place], bytes_room.left()
            if room == want.limit:
                bytes_left = max(1, bytes_left)  # Each lane gets at least one run.
            if room <= 0 or bytes_left <= 0:
                break
            if limit is not None:
                room = min(room, limit - _running_in_queue(cursor, queue))
                if room <= 0:
                    continue
            asked = {
                "worker_id": op.worker_id,
                **time._asdict(),
                "queue": queue,
                "lane": want.lane,
                "tasks": tasks,
                "limit": room,
            }
            if room * PAYLOAD_BYTES > bytes_left:
                asked["limit"] = _count_within(bytes_left, cursor, asked)
            taken = cursor.execute(SQL["take"], asked).rowcount
            rooms[place] -= bytes_room.note(taken)


def _count_within(size: int, cursor: sqlite3.Cursor, asked: dict[str, Any]) -> int:
    """Return how many runs to take. With the last of them, the arguments reach `size` bytes."""
    sizes = json.loads(cursor.execute(SQL["sizes_ready"], asked).fetchone()[0])
    return min(len(sizes), bisect_left(list(accumulate(sizes)), size) + 1)


def _read(cursor: sqlite3.Cursor, worker_id: str, time: ClaimTime) -> Claims:
    place = {"worker_id": worker_id, "claimed_at": time.claimed_at}
    text = cursor.execute(SQL["taken"], place).fetchone()[0]
    rows = json.loads(text)
    # Urgent runs come first. Runs of equal priority are sorted by their due time.
    rows.sort(key=_DUE)
    rows.sort(key=_PRIORITY, reverse=True)
    claims = Claims(map(_claim, rows))
    # Most answers are too short to reach the bound, so their sizes are not added up.
    if MOST_BYTES_PER_CHARACTER * len(text) >= TRANSACTION_BYTES:
        claims.is_cut = sum(bytes_of(claim.arguments) for claim in claims) >= TRANSACTION_BYTES
    return claims


def _running_in_queue(cursor: sqlite3.Cursor, queue: str) -> int:
    found: int = cursor.execute(SQL["running_in_queue"], {"queue": queue}).fetchone()[0]
    return found


class SqliteLimitedClaim:
    """A claim of runs that count against limits of their tasks.

    SQLite has one writer at a time. So the counts stay correct until the runs that this claim takes
    are counted too.
    """

    def __init__(
        self,
        cursor: sqlite3.Cursor,
        op: ClaimRuns,
        limits: ClaimLimits,
        bytes_room: _ByteBudget,
        time: ClaimTime,
    ) -> None:
        self._cursor = cursor
        self._op = op
        self._limits = limits
        self._bytes = bytes_room
        self._has_taken = False
        self._time = time
        self.is_first = limits.is_first
        self.has_more = False
        """Whether there may be limits that this claim did not check."""

    def take(self, rooms: list[int]) -> str | None:
        """Take as many runs as the limits have room for; return the last limit that was checked."""
        lanes, self.has_more = rotated_lanes(self._lanes, self._limits.after)
        if not lanes:
            return None
        queues = self._cursor.execute(SQL["queues"]).fetchall()
        shut = self._op.excluded
        capacities = {
            name: limit
            for name, paused, limit in queues
            if limit and not paused and name not in shut
        }
        closed = json.dumps([*(name for name, *_ in queues), *shut])
        open_queues: list[str | None] = [None, *capacities]
        for lane in lanes:
            if task_of(lane) not in self._op.tasks:
                continue
            for place, want in enumerate(self._op.wants):
                if want.lane != slot_of(lane):
                    continue
                for queue in open_queues if want.queue is None else [want.queue]:
                    room = min(rooms[place], self._room_in(lane))
                    if queue in capacities:
                        used = _running_in_queue(self._cursor, str(queue))
                        room = min(room, capacities[str(queue)] - used)
                    if room > 0 and (self._bytes.left() > 0 or not self._has_taken):
                        others = "[]" if queue in capacities else closed
                        rooms[place] -= self._take(lane, queue, others, room)
        return lanes[-1]

    def _lanes(self, after: str) -> list[str]:
        place = {"after": after, "most": LIMITS_BATCH}
        return [row[0] for row in self._cursor.execute(SQL["limited_lanes"], place).fetchall()]

    def _room_in(self, lane: str) -> int:
        capacity = self._limits.capacities.get(task_of(lane))
        if capacity is None:
            return CLAIM_BATCH
        for low, high in self._limits.ranges(lane):
            place = {"low": low, "high": high}
            capacity -= self._cursor.execute(SQL["running_in_limit"], place).fetchone()[0]
        return capacity

    def _take(self, lane: str, queue: str | None, closed: str, room: int) -> int:
        place = {"worker_id": self._op.worker_id, "lane": lane, "queue": queue}
        place |= self._time._asdict()
        bounds = {"limit": room, "bytes": max(1, self._bytes.left())}
        taken = self._cursor.execute(
            SQL["take_limited"], place | {"closed": closed} | bounds
        ).rowcount
        self._has_taken = self._has_taken or taken > 0
        return self._bytes.note(taken)


def claim_carried(cursor: sqlite3.Cursor, op: ClaimCarried, time: ClaimTime) -> Claim | None:
    """Claim a carried run by id. Return None if it can no longer be claimed."""
    place = op._asdict() | time._asdict()
    if not cursor.execute(SQL["take_carried"], place).rowcount:
        cursor.execute(SQL["put_off_handed"], place | {"after": RELAY_FULL_SECONDS * MICROSECONDS})
        return None
    cursor.execute(SQL["drop_handed"], place)
    (row,) = json.loads(cursor.execute(SQL["taken"], place).fetchone()[0])
    return _claim(row)

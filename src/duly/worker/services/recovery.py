"""Finds dead workers and settles what they left, by the same decision as any attempt."""

import math
from collections.abc import Callable
from pathlib import Path

from duly.clock import monotonic
from duly.core.batches import batches, bytes_of
from duly.core.outcome import OUTCOME_NAMES, ErrorText, Lost, Outcome, Stopped
from duly.core.record import ClaimedRun
from duly.core.retry import NO_RETRIES, Retry
from duly.core.states import CARRIED_SLOT_KINDS, SlotKind
from duly.core.verdict import AttemptState, Verdict, VerdictPolicy, decide, describe
from duly.errors import OUTAGES, StoreError
from duly.events import EventBus, WorkerEnded
from duly.limits import LOG_LINES_PER_ATTEMPT, TICK_BATCH, TRANSACTION_BYTES, WATCHERS
from duly.store.ops.recovery import Judge, Recover, RecoverOrphans
from duly.store.ops.upkeep import DutyTurn
from duly.store.protocol import Store
from duly.worker.log_spool import log_spool_path, read_log_spool
from duly.worker.services.batch_size import BatchSize
from duly.worker.services.duty_intervals import SHORTER
from duly.worker.start_marks import StartMark, StartMarks, start_marks_path

_ORPHANS_EVERY = 6
"""After so many beats: they come only of claims that were committed behind a worker's end."""
_BEHIND_SECONDS = 0.4
"""So long after a beat is due it is looked for."""
_FRESH_BEATS = 1.25
"""A worker whose last beat is older than this many beats is not counted as a watcher."""
_LEASES, _SECONDS_PER_WORKER = 4, 0.5
"""How often a worker that is not a watcher reads all beats, in case no watcher can: every four
leases, and with many workers every half second per worker."""
_LATE_PAUSE, _LATE_SECONDS = 1.0, 3.0
"""How often a beat that has not come is looked for, and for how long."""
_SAME_SECONDS = 0.05
"""Beats that are no further apart are those of one keeper."""


class LeaseMonitor:
    """Says who is dead, by one rule: an unmoved counter over a whole lease of own reads.

    No wall clock is involved, and the watcher's own beats must have succeeded throughout: a
    stalled store stalls the watcher too, and kills nobody.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._seen: dict[str, tuple[int, float]] = {}
        self._reading_since: float | None = None

    def dead(
        self,
        counters: dict[str, int | None],
        read_at: float,
        beats_since: float | None,
        answered_at: float | None = None,
    ) -> list[str]:
        """Take in one successful read; return the workers that may be called dead.

        It took place between `read_at`, when it was asked for, and `answered_at`. A watch begins
        with the latter: whoever asked may have been kept from reading for long.
        """
        if answered_at is None:
            answered_at = read_at
        if beats_since is None:
            self.interrupted()
            return []
        if self._reading_since is None or self._reading_since < beats_since:
            # The time before does not count: restart every watch.
            self._seen.clear()
            self._reading_since = read_at
        found = []
        for worker_id, counter in counters.items():
            if counter is None:
                self._seen.pop(worker_id, None)
                found.append(worker_id)
                continue
            known = self._seen.get(worker_id)
            if known is None or known[0] != counter:
                self._seen[worker_id] = (counter, answered_at)
            elif read_at - known[1] >= self._lease:
                found.append(worker_id)
        self._seen = {key: seen for key, seen in self._seen.items() if key in counters}
        return found

    def next_end(self, read_at: float) -> float:
        """Return the seconds until some counter may have stood still for a whole lease."""
        left = (seen_at + self._lease - read_at for _, seen_at in self._seen.values())
        return min((seconds for seconds in left if seconds > 0), default=math.inf)

    def unmoved_for(self, worker_id: str, read_at: float) -> float:
        """Return how long a counter has stood still; for ever if its process is surely gone."""
        known = self._seen.get(worker_id)
        return math.inf if known is None else read_at - known[1]

    def interrupted(self) -> None:
        """A read or an own beat failed: what was seen before proves nothing any more."""
        self._seen.clear()
        self._reading_since = None


def seconds_until_next_read(own_age: float, ages: list[float], beat: float) -> float:
    """Return the seconds until a look that comes right behind another worker's beat.

    The time over which a counter must stand still begins with the first look at it, so a look
    long after the beat would prolong it. A look behind everybody's beat would cost a large fleet
    much: each worker looks behind the one that follows its own, and so every beat is soon seen by
    somebody, for one look per beat.
    """
    if not ages:
        return beat
    age = min(ages, key=lambda age: (own_age - age - _SAME_SECONDS) % beat)
    if beat + _BEHIND_SECONDS <= age < beat + _LATE_SECONDS:
        return min(beat, _LATE_PAUSE)
    return (beat - age) % beat + min(beat / 4, _BEHIND_SECONDS)


class Recoverer:
    """A service: watches all other workers, recovers the dead, takes orphans."""

    name = "recover"

    def __init__(
        self,
        store: Store,
        bus: EventBus,
        slots_folder: Path,
        *,
        own_ids: Callable[[], frozenset[str]],
        beats_since: Callable[[], float | None],
        lease: float,
        beat: float,
    ) -> None:
        self._store = store
        self._bus = bus
        self._slots_folder = slots_folder
        self._own_ids = own_ids
        self._beats_since = beats_since
        self._watch = LeaseMonitor(lease)
        self._size = BatchSize(TICK_BATCH)
        self._lease = lease
        self._beat = beat
        self._look_at = 0.0
        """When to read all beats next without being a watcher."""
        self._orphans_at = 0.0

    def tick(self) -> float:
        """Read every live worker's counter once, if this worker is a watcher."""
        pulse, own = self._store.heartbeats(), self._own_ids()
        read_at = monotonic()
        try:
            if not pulse.is_watcher(own, _FRESH_BEATS * self._beat) and read_at < self._look_at:
                return self._beat
            read_at = monotonic()
            readings = pulse.read()
        except Exception:
            self._watch.interrupted()
            raise
        answered_at = monotonic()
        self._look_at = read_at + max(_LEASES * self._lease, _SECONDS_PER_WORKER * len(readings))
        others = {
            key: seen.beats
            for key, seen in readings.items()
            if key not in own and not seen.is_running
        }
        suspects = self._watch.dead(others, read_at, self._beats_since(), answered_at)
        # Their own leases may be longer than ours.
        dead = [
            worker_id
            for worker_id in suspects
            if self._watch.unmoved_for(worker_id, read_at) >= readings[worker_id].lease
        ]
        for worker_id in dead:
            beats = others[worker_id]
            recover_worker(
                self._store,
                self._bus,
                worker_id,
                self._slots_folder,
                # SQLite's workers hold a lock, so that a process that ended is seen at once.
                reason="its process ended" if beats is None else "its lease expired",
                beats=beats,
            )
        if dead or read_at >= self._orphans_at:
            every = _ORPHANS_EVERY * self._beat
            self._take_orphans(None if dead else DutyTurn("orphans", SHORTER * every))
            self._orphans_at = read_at + every
        own_age = min((readings[key].age for key in own & readings.keys()), default=0.0)
        ages = [seen.age for key, seen in readings.items() if key not in own and key not in dead]
        pause = seconds_until_next_read(own_age, ages, self._beat)
        if len(readings) > WATCHERS and not self._store.has_one_writer:
            # These few workers read the beats of many, which come at any time.
            pause = min(pause, self._beat / 2)
        return min(pause, self._watch.next_end(read_at))

    def _take_orphans(self, turn: DutyTurn | None) -> None:
        run_ids, _ = self._size.write(
            lambda limit: self._store.do(RecoverOrphans(judge_unknown, limit, turn)),
            lambda run_ids, limit: len(run_ids or ()) >= limit,
        )
        if run_ids:
            self._bus.emit(WorkerEnded("(unknown)", "runs without a live worker", tuple(run_ids)))


def recover_worker(
    store: Store,
    bus: EventBus,
    worker_id: str,
    slots_folder: Path,
    *,
    stopped: bool = False,
    reason: str = "its lease expired",
    beats: int | None = None,
) -> list[str]:
    """Settle everything a dead worker holds; its marks tell what had started, if they are here.

    With `beats` it is dead because its counter stands still there. Between that look and this
    write it may have woken up: if a beat of it was acknowledged, it may start what it holds, and
    is left alone; if none was, none will be, and only then its marks are final.
    """
    if beats is not None and not store.heartbeats().refuse_beats(worker_id, beats):
        return []
    marks = start_marks_path(slots_folder, worker_id)
    lines = log_spool_path(marks)
    _write_last_lines(store, lines)
    judge = _judge_by_marks(marks, stopped=stopped)
    run_ids = store.do(Recover(worker_id, judge, stopped, beats))
    if run_ids is None:
        return []
    store.heartbeats().forget(worker_id)
    lines.unlink(missing_ok=True)
    marks.unlink(missing_ok=True)
    bus.emit(WorkerEnded(worker_id, reason, tuple(run_ids)))
    found: list[str] = run_ids
    return found


def _write_last_lines(store: Store, path: Path) -> None:
    """Write the log lines that a dead worker had not written; those of lost claims are refused."""
    for op in read_log_spool(path):
        try:
            for lines in batches(
                op.lines,
                most=LOG_LINES_PER_ATTEMPT,
                most_bytes=TRANSACTION_BYTES,
                size_of=lambda line: bytes_of(line[2]),
            ):
                store.do(op._replace(lines=tuple(lines)))
        except OUTAGES:
            raise
        except StoreError:
            continue  # No line is worth a run that nobody recovers.


def judge_unknown(run: ClaimedRun) -> tuple[str, Verdict, ErrorText | None]:
    """Judge a run nobody knows more about: it may have started, and may have been alone."""
    # Nobody can watch alone what another engine runs, so there every loss counts.
    charged = run.lane == SlotKind.SUSPECT or run.lane in CARRIED_SLOT_KINDS
    return _verdict(run, Lost(started=True, charged=charged), NO_RETRIES)


def judge_one_slot_run(begun: frozenset[str]) -> Judge:
    """Judge what is left of a worker that ran one run at a time; the bodies of these had begun."""

    def judge(run: ClaimedRun) -> tuple[str, Verdict, ErrorText | None]:
        has_begun = run.run_id in begun
        return _verdict(run, Lost(started=has_begun, charged=has_begun), NO_RETRIES)

    return judge


def _judge_by_marks(path: Path, *, stopped: bool) -> Judge:
    try:
        slots = StartMarks(path)
    except (OSError, ValueError):
        return judge_unknown
    try:
        if not slots.is_of_this_boot():
            return judge_unknown
        marks = {(mark.run_id, mark.claim_number): mark for mark in slots.marks()}
    finally:
        slots.close()
    is_alone = len(marks) == 1
    now = monotonic()

    def judge(run: ClaimedRun) -> tuple[str, Verdict, ErrorText | None]:
        mark = marks.get((run.run_id, run.claim_number))
        if mark is None:
            return _verdict(run, Lost(started=False, charged=False), NO_RETRIES)
        if mark.overdue_at <= now and not mark.ended:
            outcome: Outcome = Lost(started=True, charged=False, overdue=True)
            return _verdict(run, outcome, _retry_after(mark))
        if stopped:
            return _verdict(run, Stopped(), NO_RETRIES)
        # Only a death that can be pinned on one run counts against it. A body that had ended may
        # have caused it, too: by a thread that it left behind, or by what it left to be recorded.
        charged = is_alone or run.lane == SlotKind.SUSPECT
        return _verdict(run, Lost(started=True, charged=charged), NO_RETRIES)

    return judge


def _verdict(
    run: ClaimedRun, outcome: Outcome, retry: Retry
) -> tuple[str, Verdict, ErrorText | None]:
    standing = AttemptState(
        run.attempt, run.retries_used, run.crashes, run.lane, run.cancel_requested
    )
    verdict = decide(standing, outcome, VerdictPolicy(retry), jitter=0.5)
    name = "timed_out" if isinstance(outcome, Lost) and outcome.overdue else None
    return name or OUTCOME_NAMES[type(outcome)], verdict, describe(outcome)


def _retry_after(mark: StartMark) -> Retry:
    """The dead worker noted what its task's policy says of a timeout; we may not know the task."""
    if mark.retry_after < 0:
        return NO_RETRIES
    return Retry(2**31, base=mark.retry_after, factor=1.0, max_delay=mark.retry_after, jitter=False)

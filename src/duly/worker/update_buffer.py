"""What bodies say, gathered and written within a second; fenced like everything about a run."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from duly.clock import SystemClock, monotonic
from duly.context import TransactionPort
from duly.core.batches import batches, bytes_of
from duly.core.record import Claim
from duly.errors import OUTAGES, AttemptTimedOut, ClaimLost, DulyError
from duly.limits import (
    COMMIT_OPS,
    LOG_LINES_PER_ATTEMPT,
    LOG_MESSAGE_CHARACTERS,
    PROGRESS_CHARACTERS,
    TRANSACTION_BYTES,
)
from duly.registry import Registry
from duly.store.ops.op import size_of
from duly.store.ops.updates import AddLogs, RestoreLogs, RunUpdate, SetProgress
from duly.store.protocol import Store
from duly.worker.attempt import storable_text
from duly.worker.log_spool import Line, LogSpool, log_spool_path

_FLUSH_SECONDS = 0.5


class UpdateBuffer:
    """The worker's side of `duly.current()`: progress, logs and cancel flags."""

    name = "journal"

    def __init__(
        self,
        store: Store,
        is_cancelled: Callable[[Claim], bool],
        registry: Registry | None = None,
        marks: Path | None = None,
    ) -> None:
        self.store = store
        self.is_cancelled = is_cancelled
        self.registry = registry
        self._unwritten = None if marks is None else LogSpool(log_spool_path(marks))
        self.task_transactions: TransactionPort | None = None
        self.lease_until: Callable[[], float] = lambda: 0.0
        """Returns when (monotonic) the worker's lease expires unless it is renewed."""
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        """Held while lines are between here and the store, lest their run's end overtake them."""
        self._progress: dict[str, SetProgress] = {}
        self._lines: dict[str, tuple[int, list[Line]]] = {}
        """By run: the newest claim number that logged, and its lines that are not written yet."""
        self._in_doubt: set[str] = set()
        """Runs whose waiting lines may be in the store already, or some of them."""
        self._leaving: dict[str, list[RunUpdate]] = {}
        """By run: what was handed over to be written with its end, and may not be written yet."""
        self._has_written = False
        """Whether lines were written since the file was last brought up to date."""
        self._held_back: set[str] = set()
        """Runs whose words are written with their transactions."""

    def wait_until(self, claim: Claim, deadline: float | None) -> float:
        """Return until when (monotonic) a body may wait for the store."""
        if deadline is not None and monotonic() >= deadline:
            raise AttemptTimedOut
        with suppress(ClaimLost):
            if not self.is_cancelled(claim):
                return self.lease_until()
        return 0.0

    def progress(self, claim: Claim, fraction: float | None, text: str | None) -> None:
        """Keep the newest progress of an attempt."""
        if text is not None:
            text = storable_text(str(text))[:PROGRESS_CHARACTERS]
        with self._lock:
            self._note(SetProgress(claim.run_id, claim.claim_number, fraction, text))

    def log(self, claim: Claim, level: str, message: str) -> None:
        """Keep a log line of an attempt, unless a newer attempt of that run has logged since."""
        with self._lock:
            line = self._clock.now(), level, storable_text(message)[:LOG_MESSAGE_CHARACTERS]
            lines = self._lines_of(claim.run_id, claim.claim_number)
            if lines is None:
                return
            lines.append(line)
            if self._unwritten is not None:
                self._unwritten.add(claim.run_id, claim.claim_number, line)

    def is_quiet(self) -> bool:
        """Return whether there is nothing to write; a cheap look for the settler's fast path."""
        # Words that `tick` has taken out to write them are in none of these; it holds `_writing`.
        with self._lock:
            waits = self._lines or self._progress or self._leaving
            return not (waits or self._writing.locked())

    def flush_run(self, run_id: str) -> list[RunUpdate]:
        """Return what is left to write of an attempt that has ended.

        Whoever writes it says so with `written`; until then it is returned again.
        """
        with self._writing, self._lock:
            return self._hand_over(run_id)

    def confirm_written(self, words: Iterable[RunUpdate]) -> None:
        """Forget words that were handed over: the store has them, or refused them for good."""
        with self._lock:
            self._has_left(words)

    def hold_updates(self, run_id: str) -> None:
        """Keep the words of a run here from now on: its transaction is about to open.

        Until that ends nobody else may be able to write, and then the run may have ended with it.
        """
        with self._lock:
            self._held_back.add(run_id)
        with self._writing:  # What is on its way is there before the transaction is.
            pass

    def release_updates(self, run_id: str) -> None:
        """Write the words of a run as ever: its transaction is over, and the run is not."""
        with self._lock:
            self._held_back.discard(run_id)

    def final_updates(self, run_id: str) -> list[RunUpdate]:
        """Return what a transaction that ends its run is to write."""
        with self._lock:
            self._held_back.discard(run_id)
            return self._hand_over(run_id)

    def restore_updates(self, words: list[RunUpdate]) -> None:
        """Keep what was not written after all."""
        with self._lock:
            self._has_left(words)
            self._keep_again(words)

    def tick(self) -> float:
        """Write what has gathered. Raise the first error of an update that the store refuses."""
        refused: list[DulyError] = []
        with self._writing:
            with self._lock:
                run_ids = {*self._lines, *self._progress} - self._held_back
                ops = [op for run_id in run_ids for op in self._pop(run_id)]
            parts = list(in_batches(ops))
            while parts:
                part = parts.pop(0)
                try:
                    self.store.apply(part)
                except OUTAGES:
                    self._put_back(op for kept in (part, *parts) for op in kept)
                    raise
                except DulyError as error:
                    if len(part) == 1:
                        refused.append(error)
                        continue
                    # The store refuses one of them for good. The others must not be lost with it.
                    parts[:0] = [[op] for op in for_another_try(part)]
                self._has_written = True
        self._forget_written()
        if refused:
            raise refused[0]
        return _FLUSH_SECONDS

    def _hand_over(self, run_id: str) -> list[RunUpdate]:
        """Return the last words of a run, which are to be written with its end."""
        words = [*self._leaving.pop(run_id, ()), *self._pop(run_id)]
        if words:
            self._leaving[run_id] = words
        return list(words)

    def _has_left(self, words: Iterable[RunUpdate]) -> None:
        for word in words:
            leaving = self._leaving.get(word.run_id, [])
            if word in leaving:
                leaving.remove(word)
                self._has_written = True
            if not leaving:
                self._leaving.pop(word.run_id, None)

    def _forget_written(self) -> None:
        """Keep in the file what is not in the store yet, and what may not be."""
        if self._unwritten is None or not self._has_written:
            return
        with self._lock:
            self._has_written = False
            words = [word for words in self._leaving.values() for word in words]
            leaving = [word for word in words if not isinstance(word, SetProgress)]
            kept = [(op.run_id, op.claim_number, line) for op in leaving for line in op.lines]
            for run_id, (claim_number, lines) in self._lines.items():
                kept += [(run_id, claim_number, line) for line in lines]
            self._unwritten.keep(kept)

    def _lines_of(self, run_id: str, claim_number: int) -> list[Line] | None:
        """Return the lines of an attempt that wait; None if a newer attempt of its run has some.

        The store would refuse all lines of a batch whose claim number is not the newest.
        """
        number, lines = self._lines.get(run_id, (claim_number, []))
        if number > claim_number:
            return None
        if number < claim_number:
            lines = []
        self._lines[run_id] = claim_number, lines
        return lines

    def _note(self, new: SetProgress, *, older: bool = False) -> None:
        """Keep the newest of each part; what a call leaves out stays as it was."""
        known = self._progress.get(new.run_id)
        if known is not None and known.claim_number > new.claim_number:
            return
        if known is not None and known.claim_number == new.claim_number:
            first, last = (new, known) if older else (known, new)
            fraction = first.fraction if last.fraction is None else last.fraction
            new = last._replace(fraction=fraction, text=last.text or first.text)
        self._progress[new.run_id] = new

    def _put_back(self, ops: Iterable[RunUpdate]) -> None:
        with self._lock:
            self._keep_again(ops)

    def _keep_again(self, ops: Iterable[RunUpdate]) -> None:
        for op in ops:
            if isinstance(op, SetProgress):
                self._note(op, older=True)
                continue
            lines = self._lines_of(op.run_id, op.claim_number)
            if lines is not None:
                lines[:0] = op.lines
                self._in_doubt.add(op.run_id)

    def _pop(self, run_id: str) -> list[RunUpdate]:
        found: list[RunUpdate] = []
        progress = self._progress.pop(run_id, None)
        if progress is not None:
            found.append(progress)
        if run_id in self._lines:
            claim_number, lines = self._lines.pop(run_id)
            op = RestoreLogs if run_id in self._in_doubt else AddLogs
            self._in_doubt.discard(run_id)
            found += [
                op(run_id, claim_number, tuple(batch))
                for batch in batches(
                    lines,
                    most=LOG_LINES_PER_ATTEMPT,
                    most_bytes=TRANSACTION_BYTES,
                    size_of=lambda line: bytes_of(line[2]),
                )
            ]
        return found


def for_another_try(updates: Iterable[RunUpdate]) -> list[RunUpdate]:
    """Return updates that may be written already: no log line is written a second time."""
    return [RestoreLogs(*op) if isinstance(op, AddLogs) else op for op in updates]


def in_batches(ops: Iterable[RunUpdate]) -> Iterator[list[RunUpdate]]:
    """Divide what bodies have said into batches, one transaction each."""
    return batches(ops, most=COMMIT_OPS, most_bytes=TRANSACTION_BYTES, size_of=size_of)

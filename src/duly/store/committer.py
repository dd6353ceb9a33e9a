"""Group commit by leader and followers.

A caller that finds no commit under way writes in its own thread at once. Whatever arrives
meanwhile waits and goes into the next commit, whose leader is the first of those who wait. So a
lone caller pays no hop and no timer, and a thousand concurrent ones share a few commits. Callers
that must not block (event loops) leave their ops with a thread of the committer's own.

An exception may be thrown into a caller's thread from outside, at any instruction: a time limit of
another engine, Ctrl-C. Whoever is struck says in one assignment that it has left, and then does
what it owes the others. Should that be struck too, they notice that it has left and do it.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from duly.errors import StoreError, StoreUnavailable
from duly.limits import COMMIT_OPS
from duly.store.ops import Op

Write = Callable[[list[Op]], list[Any]]
Done = Callable[[list[Any] | BaseException], None]

_LOOK_SECONDS = 0.5
"""How often who waits looks whether somebody has left without a word."""


class Committer:
    """Turns concurrent `apply` calls into few transactions."""

    def __init__(self, write: Write, *, name: str) -> None:
        self._write = write
        self._name = name
        self._mutex = threading.Lock()
        self._idle = threading.Condition(self._mutex)
        self._waiting: deque[_Request] = deque()
        self._leader: _Request | None = None
        """Who writes, or is about to; nobody else does."""
        self._own = _Request((), None)
        """Leads for those who have left their ops, on the committer's own thread."""
        self._closed = False
        self._thread: threading.Thread | None = None
        self._thread_turn = threading.Semaphore(0)
        self._thread_ends = False
        self._starting = threading.Lock()

    def apply(self, ops: Sequence[Op]) -> list[Any]:
        """Write the ops, perhaps together with those of other callers; return their answers."""
        request = _Request(ops, None)
        try:
            with self._mutex:
                self._refuse_if_closed()
                is_first = self._leader is None
                if is_first:
                    self._leader = request
                else:
                    self._queue(request)
            if is_first:
                # As most callers are: nobody has to be told.
                request.answers = self._write(list(ops))
                self._hand_over(request)
            else:
                self._follow(request)
        except BaseException:
            # No call stands before this, so that nothing strikes before it either.
            request.has_left = True
            self._make_up_for(request)
            raise
        if request.error is not None:
            raise request.error
        return request.answers

    def submit(self, ops: Sequence[Op], done: Done) -> None:
        """Write the ops from the committer's thread, then call `done` there."""
        try:
            with self._mutex:
                self._refuse_if_closed()
                self._queue(_Request(ops, done))
                has_to_lead = self._leader is None
                if has_to_lead:
                    self._leader = self._own
            if has_to_lead:
                self._call_thread()
        except BaseException:
            if self._leader is self._own:
                self._call_thread()
            raise

    def close(self) -> None:
        """Write what waits, then end the committer's thread."""
        with self._idle:
            self._closed = True
            if threading.current_thread() is self._thread:
                return
        while self._leader is not None:
            with self._idle:
                if self._leader is not None:
                    self._idle.wait(_LOOK_SECONDS)
            self._look_after_leader()
        if self._thread is not None:
            self._thread_ends = True
            self._thread_turn.release()
            self._thread.join()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError("this store is closed; open the application's store anew")

    def _queue(self, request: "_Request") -> None:
        request.turn = threading.Lock()
        request.turn.acquire()
        self._waiting.append(request)

    def _follow(self, request: "_Request") -> None:
        while not request.turn.acquire(timeout=_LOOK_SECONDS):
            self._look_after_leader()
            if self._leader is request or request.is_done:
                break
            taker = request.taker
            if taker is not None and taker.has_left and taker.is_writing:
                raise StoreUnavailable(_INTERRUPTED)
        if self._leader is request:
            self._lead(request)

    def _look_after_leader(self) -> None:
        leader = self._leader
        if leader is self._own:
            self._call_thread()
        elif leader is not None and leader.has_left:
            self._make_up_for(leader)

    def _make_up_for(self, gone: "_Request") -> None:
        """Do what a caller owes the others that cannot go on: somebody struck it."""
        with self._mutex:
            if gone in self._waiting:
                self._waiting.remove(gone)
            batch, gone.batch = gone.batch, []
            if not gone.is_writing:
                self._put_back([request for request in batch if request is not gone])
                batch = []
        for request in batch:
            if not request.is_done and request is not gone:
                request.error = StoreUnavailable(_INTERRUPTED)
                request.finish()
        self._hand_over(gone)
        if self._leader is self._own:
            self._call_thread()

    def _put_back(self, batch: "list[_Request]") -> None:
        for request in reversed(batch):
            if request not in self._waiting:
                self._waiting.appendleft(request)

    def _lead(self, leader: "_Request") -> None:
        self._take(leader)
        leader.is_writing = True
        self._commit(leader.batch)
        for request in leader.batch:
            request.finish()
        self._hand_over(leader)

    def _take(self, leader: "_Request") -> None:
        room = COMMIT_OPS
        batch = leader.batch
        with self._mutex:
            while self._waiting and (not batch or room >= len(self._waiting[0].ops)):
                request = self._waiting[0]
                request.taker = leader
                room -= len(request.ops)
                batch.append(request)
                self._waiting.popleft()

    def _commit(self, batch: "list[_Request]") -> None:
        if not batch:
            return
        if len(batch) == 1:
            _write_alone(self._write, batch[0])
            return
        try:
            answers = self._write([op for request in batch for op in request.ops])
        except StoreUnavailable as error:
            for request in batch:
                request.error = error
        except Exception:  # noqa: BLE001 - whoever is to blame finds out in its own transaction
            # Nothing was written. Replaying one request per transaction lets only the
            # culprit fail.
            for request in batch:
                _write_alone(self._write, request)
        else:
            begin = 0
            for request in batch:
                end = begin + len(request.ops)
                request.answers = answers[begin:end]
                begin = end

    def _hand_over(self, leader: "_Request") -> None:
        """Let the next one lead, if it is this one that led."""
        with self._mutex:
            if self._leader is not leader:
                return
            if not self._waiting:
                self._leader = None
                if self._closed:
                    self._idle.notify_all()
                return
            following = self._waiting[0]
            if following.done is None:
                turn = following.turn
                # Nothing strikes between these two, since no call stands between them.
                self._leader = following
                turn.release()
                return
            self._leader = self._own
        self._call_thread()

    def _call_thread(self) -> None:
        """Let the committer's own thread lead, if it is to; said too often it does no harm."""
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
        self._thread_turn.release()

    def _serve(self) -> None:
        while True:
            self._thread_turn.acquire()
            if self._thread_ends:
                return
            me = _Request((), None)
            with self._mutex:
                is_called = self._leader is self._own
                if is_called:
                    self._leader = me
            if not is_called:
                continue
            try:
                self._lead(me)
            except BaseException:
                me.has_left = True
                self._make_up_for(me)
                raise


class _Request:
    __slots__ = (
        "answers", "batch", "done", "error", "has_left", "is_done", "is_writing", "ops", "taker",
        "turn",
    )  # fmt: skip

    def __init__(self, ops: Sequence[Op], done: Done | None) -> None:
        self.ops = ops
        self.done = done
        self.answers: list[Any] = []
        self.error: BaseException | None = None
        self.is_done = False
        self.has_left = False
        """Whether whoever asked is gone, and leads no more if it led."""
        self.is_writing = False
        """Whether its commit has begun, which may by now be written."""
        self.taker: _Request | None = None
        """Whose commit these ops are in."""
        self.batch: list[_Request] = []
        """Whose ops are in this one's commit."""
        self.turn: threading.Lock

    def finish(self) -> None:
        if self.done is None:
            self.is_done = True
            # Who leads was told before.
            if self.turn.locked():
                self.turn.release()
            return
        # Whoever asked may be gone, its event loop closed; the others still wait for theirs.
        with contextlib.suppress(Exception):
            self.done(self.answers if self.error is None else self.error)
        self.is_done = True


_INTERRUPTED = "the commit was interrupted; whether it was written is not known"


def _write_alone(write: Write, request: _Request) -> None:
    try:
        request.answers = write(list(request.ops))
    except Exception as error:  # noqa: BLE001 - handed to the caller, who waits for it
        request.error = error

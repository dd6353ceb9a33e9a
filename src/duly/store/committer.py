"""Group commit by leader and followers.

A caller that finds no commit under way writes in its own thread at once. Whatever arrives
meanwhile waits and goes into the next commit, whose leader is the first of those who wait. So a
lone caller pays no hop and no timer, and a thousand concurrent ones share a few commits. Callers
that must not block (event loops) leave their ops with a thread of the committer's own.
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


class Committer:
    """Turns concurrent `apply` calls into few transactions."""

    def __init__(self, write: Write, *, name: str) -> None:
        self._write = write
        self._name = name
        self._mutex = threading.Lock()
        self._idle = threading.Condition(self._mutex)
        self._waiting: deque[_Request] = deque()
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._thread_turn = threading.Semaphore(0)
        self._thread_ends = False

    def apply(self, ops: Sequence[Op]) -> list[Any]:
        """Write the ops, perhaps together with those of other callers; return their answers."""
        is_alone = False
        try:
            with self._mutex:
                self._refuse_if_closed()
                request = self._queue(ops, None) if self._busy else None
                # No call stands between these two, so that no interrupt does either.
                is_alone = request is None
                self._busy = True
            if request is None:
                # As most callers are: nobody has to be told.
                return self._write(list(ops))
        finally:
            if is_alone:
                self._hand_over()
        self._follow(request)
        if request.error is not None:
            raise request.error
        return request.answers

    def submit(self, ops: Sequence[Op], done: Done) -> None:
        """Write the ops from the committer's thread, then call `done` there."""
        with self._mutex:
            self._refuse_if_closed()
            self._queue(ops, done)
            has_to_lead = not self._busy
            self._busy = True
        if has_to_lead:
            self._call_thread()

    def close(self) -> None:
        """Write what waits, then end the committer's thread."""
        with self._idle:
            self._closed = True
            if threading.current_thread() is self._thread:
                return
            while self._busy:
                self._idle.wait()
        if self._thread is not None:
            self._thread_ends = True
            self._thread_turn.release()
            self._thread.join()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError("this store is closed; open the application's store anew")

    def _queue(self, ops: Sequence[Op], done: Done | None) -> "_Request":
        request = _Request(ops, done)
        self._waiting.append(request)
        return request

    def _follow(self, request: "_Request") -> None:
        try:
            request.turn.acquire()
        except BaseException:
            self._give_up(request)
            raise
        if request.leads:
            self._lead()

    def _give_up(self, request: "_Request") -> None:
        """A waiting caller was interrupted: its ops are withdrawn, its turn goes to the next."""
        with self._mutex:
            if request not in self._waiting:
                return
            self._waiting.remove(request)
            had_turn = request.leads
        if had_turn:
            self._hand_over()

    def _lead(self) -> None:
        batch = self._take()
        try:
            self._commit(batch)
        except BaseException:
            # An interrupt of this thread must not leave the others of the batch waiting.
            for request in batch[1:]:
                request.error = StoreUnavailable(
                    "the commit was interrupted; whether it was written is not known"
                )
            raise
        finally:
            for request in batch:
                request.finish()
            self._hand_over()

    def _take(self) -> "list[_Request]":
        batch: list[_Request] = []
        room = COMMIT_OPS
        with self._mutex:
            while self._waiting and (not batch or room >= len(self._waiting[0].ops)):
                room -= len(self._waiting[0].ops)
                batch.append(self._waiting.popleft())
        return batch

    def _commit(self, batch: "list[_Request]") -> None:
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

    def _hand_over(self) -> None:
        with self._mutex:
            if not self._waiting:
                self._busy = False
                if self._closed:
                    self._idle.notify_all()
                return
            following = self._waiting[0]
            following.leads = True
        if following.done is not None:
            self._call_thread()
        else:
            following.turn.release()

    def _call_thread(self) -> None:
        """Let the committer's own thread lead; only who leads now calls this."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._thread_turn.release()

    def _serve(self) -> None:
        while True:
            self._thread_turn.acquire()
            if self._thread_ends:
                return
            self._lead()


class _Request:
    __slots__ = ("answers", "done", "error", "leads", "ops", "turn")

    def __init__(self, ops: Sequence[Op], done: Done | None) -> None:
        self.ops = ops
        self.done = done
        self.answers: list[Any] = []
        self.error: BaseException | None = None
        self.leads = False
        self.turn = threading.Lock()
        self.turn.acquire()

    def finish(self) -> None:
        if self.done is None:
            if self.turn.locked():
                self.turn.release()
            return
        # Whoever asked may be gone, its event loop closed; the others still wait for theirs.
        with contextlib.suppress(Exception):
            self.done(self.answers if self.error is None else self.error)


def _write_alone(write: Write, request: _Request) -> None:
    try:
        request.answers = write(list(request.ops))
    except Exception as error:  # noqa: BLE001 - handed to the caller, who waits for it
        request.error = error

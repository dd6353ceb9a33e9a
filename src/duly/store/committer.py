"""Group commit by leader and followers.

A caller that finds no commit under way writes in its own thread at once. Whatever arrives
meanwhile waits and goes into the next commit, whose leader is the first of those who wait. So a
lone caller pays no hop and no timer, and a thousand concurrent ones share a few commits. Callers
that must not block (event loops) leave their ops with a thread of the committer's own.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from duly.errors import StoreError, StoreUnavailable
from duly.limits import COMMIT_OPS
from duly.store.protocol import Op

Write = Callable[[list[Op]], list[Any]]
Done = Callable[[list[Any] | BaseException], None]


class Committer:
    """Turns concurrent `apply` calls into few transactions."""

    def __init__(self, write: Write, *, name: str) -> None:
        self._write = write
        self._name = name
        self._mutex = threading.Lock()
        self._waiting: deque[_Request] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None
        self._thread_turn = threading.Semaphore(0)
        self._thread_leads = False
        self._closed = False

    def apply(self, ops: Sequence[Op]) -> list[Any]:
        """Write the ops, perhaps together with those of other callers; return their answers."""
        request = _Request(ops, None)
        if self._join(request):
            self._lead()
        else:
            self._follow(request)
        if request.error is not None:
            raise request.error
        return request.answers

    def submit(self, ops: Sequence[Op], done: Done) -> None:
        """Write the ops from the committer's thread, then call `done` there."""
        if self._join(_Request(ops, done)):
            self._call_thread()

    def close(self) -> None:
        """End the committer's thread; what waits is written first."""
        with self._mutex:
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._thread_turn.release()
            thread.join()

    def _join(self, request: "_Request") -> bool:
        """Queue up; return whether the caller has to lead."""
        with self._mutex:
            if self._closed:
                message = "this store is closed; open the application's store anew"
                raise StoreError(message)
            self._waiting.append(request)
            if self._busy:
                return False
            self._busy = True
            return True

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
            if request in self._waiting:
                self._waiting.remove(request)
        if request.leads:
            self._hand_over()

    def _lead(self) -> None:
        try:
            self._commit(self._take())
        finally:
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
        else:
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
        for request in batch:
            request.finish()

    def _hand_over(self) -> None:
        with self._mutex:
            if not self._waiting:
                self._busy = False
                return
            following = self._waiting[0]
        if following.done is not None:
            self._call_thread()
        else:
            following.leads = True
            following.turn.release()

    def _call_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._thread_leads = True
        self._thread_turn.release()

    def _serve(self) -> None:
        while True:
            self._thread_turn.acquire()
            if self._thread_leads:
                self._thread_leads = False
                self._lead()
            with self._mutex:
                if self._closed and not self._waiting:
                    return


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
        if self.done is not None:
            self.done(self.answers if self.error is None else self.error)
        elif self.turn.locked():
            self.turn.release()


def _write_alone(write: Write, request: _Request) -> None:
    try:
        request.answers = write(list(request.ops))
    except BaseException as error:  # noqa: BLE001 - handed to the caller, who waits for it
        request.error = error

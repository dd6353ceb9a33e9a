"""Group commit by leader and followers.

A caller that arrives while there is no commit writes in its own thread at once. Callers that arrive
during a commit wait and share the next one, which the first of them leads. So a single caller needs
no thread switch and no timer, and a thousand concurrent callers share a few commits. Callers that
must not block (event loops) give their ops to the committer's own thread.

An interrupt may raise an exception in a caller's thread at any instruction, for example the time
limit of another engine or Ctrl-C. Therefore no lock and no flag records which caller leads: after
an exception, either could stay set for ever. All callers wait in one line, and the first in line
leads. A caller is in line while its generator runs, and the interpreter itself keeps that state. A
caller whose generator no longer runs has left the line, for whatever reason, and any other caller
may answer its followers and remove it. Every change to the line is one operation of a dict, and
every change may be repeated. So nothing depends on the instruction at which an exception occurs.
"""

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from types import GeneratorType
from typing import Any, NamedTuple, NoReturn, TypeVar

from duly.errors import DulyError, StoreBusy, StoreError, StoreUnavailable, WouldBlockItself
from duly.limits import COMMIT_OPS, TRANSACTION_BYTES
from duly.store.ops.op import AnyOp, Op
from duly.store.wake_lock import new_wake_lock, wake


class OpBlocked(StoreBusy):
    """One op of a commit waited too long for a lock; nothing of the commit was written."""

    def __init__(self, message: str, op: AnyOp) -> None:
        super().__init__(message)
        self.op = op


class OpCutOff(StoreBusy):
    """A batch of a service took too long and was not written. A smaller one may be."""


OP_ERRORS = (DulyError, ValueError, TypeError, ArithmeticError)
"""The errors that a write raises because of one of its ops. Nothing was written. Any other
exception, such as the time limit of another engine, belongs to the leading thread and is raised
there."""

A = TypeVar("A")
Answers = list[Any]
"""The answers to ops of several kinds, in the order of the ops."""
Write = Callable[[list[AnyOp]], Answers]
Done = Callable[[Answers | BaseException], None]

_LOOK_SECONDS = 0.5
"""How often a waiting caller checks whether the callers before it have left."""


class WriteKind(NamedTuple):
    """How requests of one kind are written. Requests of several kinds never share a commit."""

    write: Write
    is_alone: Callable[[AnyOp], bool] | None = None
    """Returns whether an op needs a transaction of its own. A request with such an op shares no
    commit, because a commit of several transactions could not be repeated if one fails."""


class Committer:
    """Turns concurrent `apply` calls into few transactions."""

    def __init__(
        self,
        kinds: Write | Mapping[str, WriteKind],
        *,
        name: str,
        size_of: Callable[[AnyOp], int] = lambda _op: 0,
    ) -> None:
        self._kinds = {"": WriteKind(kinds)} if callable(kinds) else kinds
        self._size_of = size_of
        """Returns how many bytes of payload an op writes; it must not raise."""
        self._name = name
        self._line: dict[_Request, None] = {}
        """Requests without an answer, in the order of their arrival."""
        self._is_closing = False
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._thread_call = new_wake_lock()
        self._starting = threading.Lock()

    def apply(self, ops: Sequence[Op[A]], kind: str = "") -> list[A]:
        """Write the ops, perhaps together with those of other callers; return their answers."""
        if self._is_closing:
            self._refuse()
        request = _Request(ops, kind=kind)
        self._join_line(request)
        outcome = request.outcome()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def submit(self, ops: Sequence[AnyOp], done: Done, kind: str = "") -> None:
        """Write the ops from the committer's thread, then call `done` there."""
        if self._is_closing:
            self._refuse()
        request = _Request(ops, done, kind=kind)
        try:
            self._line[request] = None
            if self._is_closed:
                # The committer was closed after the check above, and its thread has ended.
                self._wait_for_line()
            elif self._thread is None or self._thread_call.locked():
                self._call_thread()
            # Otherwise the thread was called, and has not checked the line since then.
        except BaseException:
            self._line.pop(request, None)
            raise

    def close(self) -> None:
        """Write all waiting ops, then end the committer's thread.

        On the committer's thread, only refuse new requests.
        """
        self._is_closing = True
        if threading.current_thread() is self._thread:
            return
        self._wait_for_line()
        # A caller that has passed the first check reads this flag when it is in line. So the caller
        # is refused there, or it joined the line before this assignment.
        self._is_closed = True
        self._wait_for_line()
        if self._thread is not None:
            wake(self._thread_call)
            self._thread.join()

    def _wait_for_line(self) -> None:
        while self._line:
            self._join_line(_Request(()))

    def _refuse(self) -> NoReturn:
        raise StoreError(_CLOSED)

    def _join_line(self, request: "_Request") -> None:
        caller = self._in_line(request)
        request.caller = caller  # type: ignore[assignment]  # the ABC lacks the generator's state
        try:
            next(caller, None)
        except Exception as error:
            request.error = error
            raise
        finally:
            if request.batch:
                self._settle(request)
            self._line.pop(request, None)
            # A follower that was answered does not change the line.
            if self._line and not request.is_done:
                self._wake_first()

    def _in_line(self, me: "_Request") -> Generator[None]:
        """Stay in line until this request is answered; lead a commit when it is the first.

        This is a generator only so that the interpreter keeps its state. It yields nothing.
        """
        self._line[me] = None
        is_alone = len(self._line) == 1
        # `is_done` is read after the length, because another caller marks a request as done before
        # it removes the request.
        if is_alone and not me.is_done:
            if self._is_closed and me.ops:
                self._refuse()
            me.answers = self._kinds[me.kind].write(list(me.ops)) if me.ops else []
            return
        me.turn = new_wake_lock()
        while not me.is_done:
            first = self._first()
            # `is_done` is read after this call, which may have answered the followers of a caller
            # that has left.
            if first is me and not me.is_done:
                if self._is_closed and me.ops:
                    self._refuse()
                self._lead(me)
                return
            if not me.is_done:
                if first is not None and first is not me and first.thread == me.thread:
                    # For example, a signal handler interrupted that call. The call continues only
                    # after the handler returns, so the handler would wait for ever.
                    raise WouldBlockItself(_WITHIN_OWN_CALL)
                me.turn.acquire(timeout=_LOOK_SECONDS)
        return
        yield

    def _first(self) -> "_Request | None":
        """Return the first caller in line; remove those before it that have left."""
        for request in list(self._line):
            if request.caller is None:
                continue
            if request.caller.gi_running:
                return request
            self._settle(request)
            self._line.pop(request, None)
        return None

    def _wake_first(self) -> None:
        first = self._first()
        if first is not None:
            if first.turn is not None:
                wake(first.turn)
        elif self._line:
            self._call_thread()

    def _lead(self, leader: "_Request") -> None:
        leader.batch = self._batch_of(leader)
        self._commit(leader.batch)
        self._settle(leader)

    def _batch_of(self, leader: "_Request") -> "tuple[_Request, ...]":
        if self._needs_own_commit(leader):
            return (leader,)
        size_of = self._size_of
        room = COMMIT_OPS - len(leader.ops)
        is_empty = not leader.ops
        waiting = self._of_one_kind(leader)
        # A single request needs no bound and is written as it is.
        is_shared = len(waiting) - is_empty > 1
        bytes_left = TRANSACTION_BYTES - sum(map(size_of, leader.ops)) if is_shared else 0
        found: list[_Request] = []
        for request in waiting:
            if request is leader:
                found.append(request)
            elif request.is_done:
                self._line.pop(request, None)
            elif request.caller is None or request.caller.gi_running:
                is_alone = self._needs_own_commit(request)
                fits = len(request.ops) <= room and not is_alone
                counts = is_shared and not is_alone and (fits or is_empty)
                size = sum(map(size_of, request.ops)) if counts else 0
                fits = is_empty or (fits and size <= bytes_left)
                if fits:
                    room, is_empty = room - len(request.ops), False
                    bytes_left -= size
                    found.append(request)
                if is_alone or not fits:
                    # Later requests wait. After this, only the leader is still added.
                    room = -1
        return tuple(found)

    def _of_one_kind(self, leader: "_Request") -> "list[_Request]":
        """Return the requests in line that are written as the first is. Others wait for theirs."""
        waiting = list(self._line)
        if len(self._kinds) == 1:
            return waiting
        kind = leader.kind
        if not leader.ops:
            kind = next((each.kind for each in waiting if each.ops and not each.is_done), kind)
        return [each for each in waiting if each.kind == kind or each.is_done or not each.ops]

    def _needs_own_commit(self, request: "_Request") -> bool:
        is_alone = self._kinds[request.kind].is_alone if request.ops else None
        return is_alone is not None and any(map(is_alone, request.ops))

    def _commit(self, requests: "Sequence[_Request]") -> None:
        batch = [request for request in requests if request.ops or request.answer_nothing()]
        if not batch:
            return
        if self._is_closed:
            for request in batch:
                request.error = StoreError(_CLOSED)
            return
        write = self._kinds[batch[0].kind].write
        if len(batch) == 1:
            _write_alone(write, batch[0])
            return
        try:
            answers = write([op for request in batch for op in request.ops])
        except OpBlocked as blocked:
            others = []
            for request in batch:
                if any(op is blocked.op for op in request.ops):
                    request.error = blocked
                else:
                    others.append(request)
            self._commit(others)
        except StoreUnavailable as error:
            for request in batch:
                request.error = error
        except OP_ERRORS:
            # Nothing was written. With one transaction per request, only the faulty request fails.
            for request in batch:
                _write_alone(write, request)
        else:
            begin = 0
            for request in batch:
                end = begin + len(request.ops)
                request.answers = answers[begin:end]
                begin = end

    def _settle(self, leader: "_Request") -> None:
        """Answer the followers of a commit that has ended, or whose leader has left."""
        for request in leader.batch:
            if request is leader:
                continue
            if request.answers is None and request.error is None:
                request.error = StoreUnavailable(_INTERRUPTED)
                request.error.__cause__ = leader.error
            if request.done is not None and not request.is_done:
                request.call_back(request.done)
            request.is_done = True
            # The follower is removed before it is woken, so that it leaves without serving others.
            self._line.pop(request, None)
            if request.turn is not None:
                wake(request.turn)
        leader.batch = ()

    def _call_thread(self) -> None:
        """Wake the committer's own thread, and start it if necessary. Safe to call repeatedly."""
        if self._thread is None or not self._thread.is_alive():
            # Two threads would do no harm, since both wait in line. So the lock is optional.
            is_locked = self._starting.acquire(timeout=_LOOK_SECONDS)
            try:
                if self._thread is None or not self._thread.is_alive():
                    thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                    thread.start()
                    self._thread = thread
            finally:
                if is_locked:
                    self._starting.release()
        wake(self._thread_call)

    def _serve(self) -> None:
        try:
            while not self._is_closed:
                self._thread_call.acquire()
                while any(request.done is not None for request in list(self._line)):
                    # The requests of a failed commit already have their error.
                    with contextlib.suppress(Exception):
                        self._join_line(_Request(()))
            wake(self._thread_call)
        except BaseException:
            self._thread = None  # The next submission starts another thread.
            raise


class _Request:
    __slots__ = (
        "answers",
        "batch",
        "caller",
        "done",
        "error",
        "is_done",
        "kind",
        "ops",
        "thread",
        "turn",
    )

    def __init__(self, ops: Sequence[AnyOp], done: Done | None = None, *, kind: str = "") -> None:
        self.ops = ops
        self.kind = kind
        self.done = done
        self.thread = None if done is not None else threading.get_ident()
        """The id of the caller's thread, which waits. None for a submission."""
        self.caller: GeneratorType[None, None, None] | None = None
        """Runs while a thread waits for the answer or leads. None for a submission."""
        self.answers: Answers | None = None
        self.error: BaseException | None = None
        self.is_done = False
        self.batch: tuple[_Request, ...] = ()
        """The requests in the commit that this request leads, including itself."""
        self.turn: threading.Lock | None = None

    def outcome(self) -> Answers | BaseException:
        """Return the answers, or the error if there are none."""
        if self.answers is not None:
            return self.answers
        return self.error or StoreUnavailable(_INTERRUPTED)

    def answer_nothing(self) -> bool:
        """Answer a request without ops, which only waits for its turn."""
        self.answers = []
        return False

    def call_back(self, done: Done) -> None:
        try:  # noqa: SIM105 - called for each request of a commit, where `suppress` costs more
            done(self.outcome() if self.answers is None else self.answers)
        except Exception:  # noqa: BLE001, S110
            # The caller's event loop may be closed. The other callers still wait for their answers.
            pass


_WITHIN_OWN_CALL = (
    "this call interrupted a write of the same thread, for example from a signal handler or a "
    "destructor, and cannot wait for that write; enqueue from another thread"
)
_CLOSED = "this store is closed; open the store of the application again"
_INTERRUPTED = "the commit was interrupted, so it is unknown whether it was written"


def _write_alone(write: Write, request: _Request) -> None:
    try:
        request.answers = write(list(request.ops))
    except OP_ERRORS as error:
        request.error = error

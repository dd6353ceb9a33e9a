"""A Django transaction that ends with the completion of the run.

The task's writes through Django's models, its enqueued runs and its completion commit together,
fenced by the claim, or not at all.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction

from duly import current, faultpoints
from duly.errors import StoreUnavailable, TransactionEnded, TransactionTooLong
from duly.integrations.django.databases import (
    WriterLock,
    external_store,
    roll_back_from_timer,
    transaction_limit_seconds,
)
from duly.integrations.django.task_body import ON_EXTERNAL_CONNECTION, close_stale_connections
from duly.interrupts import defer_interrupts
from duly.store.ops.op import A, AnyOp, Op
from duly.store.ops.runs import Settle, Settled
from duly.store.ops.steps import EndStep
from duly.store.ops.updates import RunUpdate
from duly.store.outage_wait import retry_during_outage

T = TypeVar("T")
CallbackErrorReporter = Callable[[BaseException], None]

_BROKEN = (
    "nothing of this run was committed: a statement in its transaction failed and the task caught "
    "the error, or set_rollback was called; raise the error again, or run the statement in "
    "transaction.atomic()"
)


class DjangoTaskTransaction:
    """Starts at the first use of its connection, on the task's thread, and ends there."""

    def __init__(
        self,
        database: str,
        seconds: float | None,
        turn: WriterLock,
        complain: CallbackErrorReporter,
    ) -> None:
        self._database = database
        self._seconds = transaction_limit_seconds(database) if seconds is None else seconds
        self._writer_lock = turn
        self._report_callback_error = complain
        self._atomic: Any = None
        self._timer: threading.Timer | None = None
        self._connection_lock = threading.RLock()
        """Held while a statement runs, and by the timer when it ends the transaction."""
        self._end_lock = threading.Lock()
        """Held to decide whether the task was in time, by its own thread or the timer's."""
        self._is_committed = False
        self.too_long: TransactionTooLong | None = None
        """The reason if the transaction was rolled back for its duration."""

    @property
    def connection(self) -> Any:  # noqa: ANN401 - Django's own
        """Django's connection in this thread, inside the transaction that ends with the run."""
        if self.too_long is not None:
            raise self.too_long
        if self._atomic is None:
            retry_during_outage(self._start)
        return connections[self._database]

    @property
    def is_lost(self) -> bool:
        """Whether the connection was lost while the transaction was open."""
        return self._atomic is not None and bool(getattr(self._raw, "closed", False))

    def settle_and_commit(self, op: Settle, words: Sequence[RunUpdate] = ()) -> Settled:
        """Write the completion, fenced, and commit everything. If the claim is lost, roll back."""
        return self._commit_with(op, op.run_id, lambda answer: answer is Settled.DONE, words)

    def record_and_commit(self, op: EndStep) -> bool:
        """Record the result of a step, and commit the transaction with it."""
        return self._commit_with(op, op.run_id, bool)

    def record(self, op: EndStep) -> bool:
        """Record the result of a step as part of the transaction."""
        return self._write(op)

    def commit(self) -> None:
        """Commit the writes on the transaction's connection without settling a run."""
        with defer_interrupts():
            self._commit()

    def rollback(self) -> None:
        """Roll back everything that is not committed."""
        with defer_interrupts():
            self._end(is_kept=False)

    def _start(self) -> None:
        try:
            with defer_interrupts():
                self._open()
        except (InterfaceError, OperationalError) as error:
            if connections[self._database].vendor != "postgresql":
                raise  # Another transaction has locked the file. That is not an outage.
            raise StoreUnavailable(
                f"the database {self._database!r} cannot be reached: {error}"
            ) from error

    def _open(self) -> None:
        self._writer_lock.acquire()
        try:
            connection = connections[self._database]
            atomic = transaction.atomic(using=self._database, durable=True)
            atomic.__enter__()
            connection.execute_wrappers.append(self._guarded)
            # Runs before the task's own callbacks, so that an error in one of them is recognized.
            transaction.on_commit(self._note_commit, using=self._database)
        except BaseException:
            self._writer_lock.release()
            raise
        self._atomic = atomic
        self._raw = connection.connection
        self._timer = threading.Timer(self._seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _guarded(self, execute: Callable[..., T], *statement: Any) -> T:  # noqa: ANN401 - Django's
        with self._connection_lock:
            if self.too_long is not None:
                raise self.too_long
            return execute(*statement)

    def _note_commit(self) -> None:
        self._is_committed = True

    def _write(self, op: Op[A], words: Sequence[AnyOp] = ()) -> A:
        if connections[self._database].needs_rollback:
            # A statement would be executed all the same, and silently rolled back later.
            raise TransactionEnded(_BROKEN)
        with self._connection_lock:
            if self.too_long is not None:
                raise self.too_long
            store = external_store(self._database)
            if words:
                store.apply(words)
            return store.do(op)

    def _commit_with(
        self,
        op: Op[A],
        run_id: str,
        is_done: Callable[[A], bool],
        words: Sequence[AnyOp] = (),
    ) -> A:
        with defer_interrupts():
            try:
                faultpoints.hit("transaction.before_settle")
                answer = self._write(op, words)
                if is_done(answer):
                    faultpoints.hit("transaction.before_commit")
                    self._commit()
                    faultpoints.hit("transaction.after_commit")
            except (InterfaceError, OperationalError) as error:
                # If it was committed after all, the fence refuses any later settlement.
                raise StoreUnavailable(
                    f"the database {self._database!r} was lost while run {run_id} was being "
                    f"committed: {error}"
                ) from error
            finally:
                self._end(is_kept=False)
        return answer

    def _commit(self) -> None:
        try:
            self._end(is_kept=True)
        except Exception as error:
            if not self._is_committed:
                raise
            self._report_callback_error(error)  # A callback for after the commit failed.

    def _end(self, *, is_kept: bool) -> None:
        with self._end_lock:
            atomic, self._atomic = self._atomic, None
            too_long = self.too_long
        if atomic is None:
            return
        self._stop_timer(has_struck=too_long is not None)
        connection = connections[self._database]
        connection.execute_wrappers.remove(self._guarded)
        try:
            if too_long is not None or not is_kept:
                connection.set_rollback(True)
            atomic.__exit__(None, None, None)
        except DatabaseError:
            connection.close()
            if is_kept:
                raise
        finally:
            self._writer_lock.release()
            close_stale_connections()
        if too_long is not None and is_kept:
            raise too_long

    def _stop_timer(self, *, has_struck: bool) -> None:
        assert self._timer is not None  # noqa: S101 - it starts with the transaction
        self._timer.cancel()
        if has_struck:
            # Otherwise the timer could roll back the next transaction on this connection.
            self._timer.join()

    def _expire(self) -> None:
        """Roll back while the task is running, from the timer's thread."""
        why = TransactionTooLong(
            f"a transaction on the database {self._database!r} exceeded its limit of "
            f"{self._seconds:g} s and was rolled back; do slow work before the transaction, or set "
            "transaction_limit="
        )
        with self._end_lock:
            if self._atomic is None:
                return
            # Set before the task can see an error that the rollback causes.
            self.too_long = why
        roll_back_from_timer(self._database, self._raw, self._connection_lock)
        self._writer_lock.release()


@contextmanager
def with_completion(database: str) -> Iterator[None]:
    """Commit what a task writes in the block together with its completion."""
    if ON_EXTERNAL_CONNECTION.get():
        # The caller of `drain` commits everything or nothing.
        with transaction.atomic(using=database):
            yield
    else:
        _ = current().connection  # Opens the transaction. The worker ends it.
        yield

"""The base class of Celery tasks that run once per key."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from inspect import getattr_static
from typing import Any

import celery
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry, SoftTimeLimitExceeded
from celery.result import EagerResult
from celery.states import REJECTED
from celery.utils import uuid

from duly.clock import MICROSECONDS
from duly.core.class_codecs import signature_of
from duly.core.payload import CallCodec, fingerprint_of
from duly.errors import OUTAGES, BadOption, Busy, ClaimLost, DulyError
from duly.guard import Guard, GuardClaim
from duly.guard.claim import check_is_result
from duly.guard.guard import check_ttl
from duly.guard.idempotency import run_body
from duly.guard.keys import key_of
from duly.integrations.celery.app import attach_dead_letter_sender, guard_of
from duly.integrations.celery.bootstep import LedgerStep
from duly.integrations.celery.coroutines import (
    LoopIsRunning,
    check_no_loop,
    loop_runner_for,
    run_with_result_list,
)
from duly.integrations.celery.dead_letters import (
    DeadLettered,
    GuardedExecution,
    WorkerLostTooOften,
    current_execution,
    write_dead_letter,
    write_dead_letter_of,
)
from duly.integrations.celery.reservation import (
    AlreadyQueued,
    Reservation,
    options_from_celery_once,
)
from duly.limits import CRASH_LIMIT, GUARD_TTL_SECONDS, RESERVATION_SECONDS
from duly.store.ops.guard import DeadLetterRecord

_LEAST_COUNTDOWN_SECONDS = 0.2
_OUTAGE_SECONDS = 5.0


_is_resend: ContextVar[bool] = ContextVar("duly_celery_again", default=False)
"""Whether a message is being sent a second time, and so already has its reservation."""


@contextmanager
def _mark_resend() -> Iterator[None]:
    token = _is_resend.set(True)
    try:
        yield
    finally:
        _is_resend.reset(token)


class IdempotentTask(celery.Task):
    """A task that runs once per key, however often its message is delivered."""

    abstract = True
    Request = "duly.integrations.celery.request:TimeLimitedRequest"
    acks_late = True
    reject_on_worker_lost = True

    guard: Guard | None = None
    """The guard of this task. By default the guard of the application."""
    key_ttl: float | None = GUARD_TTL_SECONDS
    """How many seconds the result of a completed call is kept. None keeps it forever."""
    keys: Sequence[str] | None = None
    """The parameters that identify a call. By default all of them."""
    unique_on: Sequence[str] | str | None = None
    """The same as `keys`, under the name that celery-singleton uses."""
    redact: Sequence[str] = ()
    """The secret parameters. Log lines and the errors of dead letters do not show them."""
    crash_limit: int = CRASH_LIMIT
    """After this many processes died while they ran the task, it is not tried again."""
    raise_on_duplicate: bool = False
    """Whether sending a call raises AlreadyQueued while an equal one is queued or running."""
    graceful: bool = False
    """Whether such a call is silently dropped instead."""
    lock_expiry: float | None = None
    """Seconds after which a reservation whose call never started no longer blocks equal calls. By
    default one hour.
    """
    once: Mapping[str, Any] | None = None
    """celery-once's own form: `keys`, `graceful`, and `timeout` for `lock_expiry`."""

    _coroutine: Any = None
    """The original function if it is a coroutine function. `run` then runs it on an event loop."""
    _loop_runner: Any = None
    """The `run` that `on_bound` made of `_coroutine`. A subclass with its own `run` ignores it."""

    # -- keys --

    @property
    def used_guard(self) -> Guard:
        """The task's own guard, or the guard of its application."""
        return guard_of(self.app) if self.guard is None else self.guard

    @classmethod
    def on_bound(cls, app: celery.Celery) -> None:
        """Apply `once`, and register the guard check of workers or the sender of dead letters."""
        super().on_bound(app)
        run = getattr_static(cls, "run")
        on_loop = loop_runner_for(run)
        if on_loop is not None:
            cls._coroutine, cls._loop_runner, cls.run = run, on_loop, on_loop
        elif run is not getattr_static(cls, "_loop_runner"):
            cls._coroutine = None  # The class defines its own `run`, so ignore the inherited one.
        if cls.once is not None:
            for name, value in options_from_celery_once(cls.once).items():
                setattr(cls, name, value)
        if cls.guard is None:
            app.steps["consumer"].add(LedgerStep)
        else:
            attach_dead_letter_sender(cls.guard, app)

    @cached_property
    def codec(self) -> CallCodec:
        """The codec for the arguments of this task."""
        return CallCodec(self.run, redact=self.redact)

    def key_for(self, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """Return the key of a call."""
        names = self.keys if self.keys is not None else self.unique_on
        if names is None:
            return key_of(self.name, self.codec, tuple(args), kwargs)
        named = [names] if isinstance(names, str) else list(names)
        bound = signature_of(self.run).bind(*args, **kwargs)
        bound.apply_defaults()
        unknown = [name for name in named if name not in bound.arguments]
        if unknown:
            raise BadOption(
                f"{self.name} has no parameter {unknown[0]!r} that could distinguish calls"
            )
        return f"{self.name}:{fingerprint_of({name: bound.arguments[name] for name in named})}"

    @property
    def claim(self) -> GuardClaim:
        """The claim of the running body, with its `fence`, its `key` and `check()`."""
        execution = current_execution.get()
        claim = None if execution is None or execution.task is not self else execution.claim
        if claim is None:
            raise DulyError(f"{self.name} has a claim only while a worker runs it")
        return claim

    # -- sending --

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        task_id: str | None = None,
        **options: Any,  # noqa: ANN401 - Celery's own
    ) -> Any:  # noqa: ANN401 - Celery's own
        """Send a message, unless an equal call is queued or running and must be refused."""
        if "once" in options:
            raise BadOption("once={…} is an option of the task, not of one call")
        if not (self.raise_on_duplicate or self.graceful) or _is_resend.get():
            return super().apply_async(args, kwargs, task_id=task_id, **options)
        task_id = task_id or uuid()
        with ExitStack() as stack:
            try:
                stack.enter_context(self._reserved(args or (), kwargs or {}, task_id))
            except AlreadyQueued:
                if not self.graceful:
                    raise
                return EagerResult(None, None, REJECTED)
            return super().apply_async(args, kwargs, task_id=task_id, **options)

    def retry(self, *args: Any, throw: bool = True, **options: Any) -> Any:  # noqa: ANN401 - Celery's own
        """Retry as Celery does. A body that continues afterwards does not count as completed."""
        execution = current_execution.get()
        if execution is not None and execution.task is self:
            execution.is_retried = True
            if throw and self.claim.is_open:
                # The message may be delivered before this method returns, and must find the key
                # free.
                with self._redeliver_later(execution.args, execution.kwargs):
                    self.claim.fail()
            if self.raise_on_duplicate or self.graceful:
                # The reservation ended when the body started. The retry's message needs one, too.
                with self._redeliver_later(execution.args, execution.kwargs):
                    self._reservation(execution.key, self.request.id).acquire()
        with _mark_resend():
            return super().retry(*args, throw=throw, **options)

    def replay(self, letter: DeadLetterRecord) -> None:
        """Send the message of a dead letter again. Raise AlreadyQueued if an equal call exists."""
        args, kwargs = self.codec.decode(letter.arguments)
        route = json.loads(letter.options or "{}")
        if not route.get("exchange") and "routing_key" in route:
            route["queue"] = route.pop("routing_key")
        task_id = uuid()
        # A graceful task drops a call silently, and the dead letter would be lost with it.
        with self._reserved(args, kwargs, task_id), _mark_resend():
            self.apply_async(args, kwargs, task_id=task_id, **route)

    # -- running --

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function
        """Run the task under its key. A direct call outside a worker runs the plain function."""
        if self.request.called_directly:
            plain = super().__call__ if self._coroutine is None else self._coroutine
            return plain(*args, **kwargs)
        execution = None
        try:
            execution = GuardedExecution(self, self._key_or_dead_letter(args, kwargs), args, kwargs)
            if self._coroutine is not None and self.request.is_eager:
                self._check_loop(execution)
            # Do not return here: the limit may arrive between the result and the end of `try`.
            result = self._enter_and_run(execution)
        except SoftTimeLimitExceeded as limit:
            # Celery raises the limit only once, so it cannot be raised again here.
            execution = execution or GuardedExecution(
                self, self.key_for(args, kwargs), args, kwargs
            )
            result = self._handle_time_limit(execution, limit)
        return result

    def _check_loop(self, execution: GuardedExecution) -> None:
        """Raise LoopIsRunning for an eager call in a running loop. No dead letter is written."""
        try:
            check_no_loop(self.name)
        except LoopIsRunning:
            self._release_reservation(execution)
            raise

    def _enter_and_run(self, execution: GuardedExecution) -> Any:  # noqa: ANN401 - as the function
        args, kwargs = execution.args, execution.kwargs
        entry = self.used_guard.enter(execution.key, ttl=check_ttl(self.key_ttl), fingerprint=None)
        try:
            with entry as claim:
                execution.claim = claim
                # From here on the key itself records that the call is running or done.
                self._release_reservation(execution)
                return self._run(claim, execution) if claim.first else claim.result
        except DulyError as error:
            if error is not entry.refusal:
                raise
            with self._redeliver_later(args, kwargs):
                raise

    def _release_reservation(self, execution: GuardedExecution) -> None:
        """Release the call's reservation, if it has one."""
        if self.raise_on_duplicate or self.graceful:
            with self._redeliver_later(execution.args, execution.kwargs):
                self._reservation(execution.key, self.request.id).release()

    def _key_or_dead_letter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the key of a call. If it has none, write a dead letter and raise the error."""
        try:
            return self.key_for(args, kwargs)
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:
            with self._redeliver_later(args, kwargs):
                write_dead_letter(
                    self, args, kwargs, cause="permanent", error=error, key=None, attempts=1
                )
            raise

    def _run(self, claim: GuardClaim, execution: GuardedExecution) -> Any:  # noqa: ANN401 - as the function
        if claim.losses >= self.crash_limit:
            lost = WorkerLostTooOften(self.name, claim.losses)
            self._fail_for_good(execution, "crashed", lost, began=False)
            raise lost
        body = partial(self.run, *execution.args, **execution.kwargs)
        returned: list[Any] = []
        if self._coroutine is not None:
            body = partial(run_with_result_list, returned, body)
        before = current_execution.get()
        try:
            current_execution.set(execution)
            return run_body(claim, body, partial(self._record_return, execution), returned)
        except (Retry, Ignore, Reject):
            raise
        except Exception as error:
            if execution.dead_letter_id is None and not execution.has_returned:
                self._fail_for_good(execution, self._dead_letter_cause(error), error)
            raise
        finally:
            current_execution.set(before)

    def _record_return(self, execution: GuardedExecution, result: object) -> None:
        """Record the end of a body that has returned."""
        check_is_result(result)
        execution.has_returned = True
        if execution.dead_letter_id is not None:
            raise DeadLettered(self.name, execution.dead_letter_id)
        with self._redeliver_later(execution.args, execution.kwargs):
            claim = execution.claim
            if claim is not None and claim.is_open:
                claim.fail() if execution.is_retried else claim.done(result)

    def _handle_time_limit(self, execution: GuardedExecution, limit: SoftTimeLimitExceeded) -> Any:  # noqa: ANN401
        """Handle a soft time limit that the task did not catch."""
        claim = execution.claim
        if claim is not None and claim.is_done:
            return claim.result  # The limit came too late: the call had completed.
        if execution.has_returned and not execution.is_retried and execution.dead_letter_id is None:
            # The ledger has not answered yet. The next delivery finds what the ledger stored.
            raise self._postpone(
                execution.args, execution.kwargs, limit, _OUTAGE_SECONDS
            ) from limit
        if execution.dead_letter_id is None:
            self._fail_for_good(execution, self._dead_letter_cause(limit), limit)
        raise limit

    def _fail_for_good(
        self, execution: GuardedExecution, cause: str, error: Exception, *, began: bool = True
    ) -> None:
        """Release the key and write the dead letter, unless another worker runs the task by now."""
        with self._redeliver_later(execution.args, execution.kwargs):
            if execution.claim is not None and execution.claim.is_open:
                execution.claim.fail(began=began)
            execution.dead_letter_id = write_dead_letter_of(execution, cause, error, began=began)

    @contextmanager
    def _redeliver_later(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Redeliver the message later if the key is held, the ledger is away or the claim lost."""
        try:
            yield
        except Busy as busy:
            raise self._postpone(args, kwargs, busy, busy.retry_after) from busy
        except OUTAGES as outage:
            raise self._postpone(args, kwargs, outage, _OUTAGE_SECONDS) from outage
        except ClaimLost as lost:
            # Another worker runs the task now. Acknowledging this message could remove the only
            # copy.
            raise Reject(lost, requeue=True) from lost

    def _dead_letter_cause(self, error: Exception) -> str:
        retries = self.request.retries
        is_over = self.max_retries is not None and 0 < retries >= self.max_retries
        return "exhausted" if is_over or isinstance(error, MaxRetriesExceededError) else "permanent"

    def _postpone(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], why: Exception, seconds: float
    ) -> Exception:
        """Send the message again for a later time, and return the exception that the caller raises.

        This does not count as a retry. An eager call has no message, so nothing is sent. The other
        holder of the key may still be working; its result is then found. If it died, its lease has
        expired by then.
        """
        countdown = max(seconds, _LEAST_COUNTDOWN_SECONDS)
        again = self.signature_from_request(
            self.request, args, kwargs, countdown=countdown, retries=self.request.retries
        )
        if self.request.is_eager:
            return why
        try:
            with _mark_resend():
                again.apply_async()
        except Exception as error:  # noqa: BLE001 - any error of the broker's client
            # The broker keeps the message and delivers it again.
            return Reject(error, requeue=True)
        return Retry(exc=why, when=countdown, sig=again)

    @contextmanager
    def _reserved(
        self, args: Sequence[Any], kwargs: dict[str, Any], task_id: str
    ) -> Iterator[None]:
        """Reserve the call's key. Raise AlreadyQueued if an equal call is queued or running."""
        if not (self.raise_on_duplicate or self.graceful):
            yield
            return
        key = self.key_for(args, kwargs)
        reservation = self._reservation(key, task_id)
        seconds_left = reservation.acquire()
        holder = self.used_guard.look(key)
        if seconds_left is None and holder is not None and holder.state == "held":
            reservation.release()
            seconds_left = holder.left / MICROSECONDS
        if seconds_left is not None:
            raise AlreadyQueued(self.name, seconds_left)
        try:
            yield
        except BaseException:
            reservation.release()
            raise

    def _reservation(self, key: str, task_id: str) -> Reservation:
        expiry = RESERVATION_SECONDS if self.lock_expiry is None else self.lock_expiry
        return Reservation(self.used_guard, key, task_id, expiry=expiry)

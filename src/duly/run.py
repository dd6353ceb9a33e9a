"""A handle for one run."""

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Generic, Self, TypeVar

from duly.actor import resolve_actor
from duly.app_protocol import AppProtocol
from duly.clock import monotonic
from duly.core.amounts import check_priority, instant, microseconds
from duly.core.call_view import CallView
from duly.core.concurrency_limits import shown_lane, with_slot
from duly.core.key import check_queue, check_run_id, check_words
from duly.core.payload import decode_value, encode_value
from duly.core.record import AttemptRecord, LogLine, RunRecord, StepRecord
from duly.core.states import FINAL, State
from duly.core.unresolved_steps import outermost_steps, unresolved_steps
from duly.core.why import Reason, Situation, current_wait, why
from duly.errors import (
    BadOption,
    QueueFull,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    RunNotFinal,
    RunNotFound,
    RunNotInterrupted,
    RunNotRescheduled,
    StepNotResolved,
    WorkerTimeout,
)
from duly.limits import REASON_CHARACTERS, UNCLAIMED_SECONDS
from duly.observe.logs import log_unclaimed
from duly.registry import Definition
from duly.store.ops.operators import Cancel, RescheduleRun, RetriedRun, RetryRun
from duly.store.ops.steps import ResolveStep

R = TypeVar("R")

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.25


class Run(Generic[R]):
    """A durable request to run a task. `refresh()` reads its current state."""

    __slots__ = ("__weakref__", "_app", "_record", "id", "new")

    def __init__(
        self, host: AppProtocol, run_id: str, *, new: bool = True, record: RunRecord | None = None
    ) -> None:
        self._app = host
        self._record = record
        self.id = run_id
        self.new = new
        """True if the call that returned this handle made the run. False if its key had one."""

    @property
    def record(self) -> RunRecord:
        """Everything that the store knows about the run, as of the last refresh."""
        if self._record is None:
            self.refresh()
        if self._record is None:
            raise RunNotFound(self.id)
        return self._record

    @property
    def state(self) -> State:
        """The state of the run, as of the last refresh."""
        return State(self.record.state)

    @property
    def cause(self) -> str | None:
        """Why the run is in its final state."""
        return self.record.cause

    @property
    def is_final(self) -> bool:
        """True if the run had ended, as of the last refresh."""
        return self.state in FINAL

    def refresh(self) -> Self:
        """Read the current record of the run."""
        record = self._app.store.get_run(check_run_id(self.id))
        if record is None:
            raise RunNotFound(self.id)
        self._record = record
        return self

    def why(self) -> Reason:
        """Return why the run is not running: one word as `cause`, and a sentence."""
        run, store = self.refresh().record, self._app.store
        every = store.list_steps(run.id)
        attempts = store.list_attempts(run.id)
        definition = self._app.registry.find(run.task)
        situation = Situation(
            now=store.now(),
            store=store.shown_url,
            workers=store.list_workers(),
            is_paused=store.is_paused(run.queue),
            waits_in=current_wait(every, attempts),
            last=attempts[-1] if attempts else None,
            limit=None if definition is None else definition.limit,
            knows_task=definition is not None,
            holders=store.list_holders(run, self._app.registry.other_names(run.task)),
            interrupted_in=outermost_steps(unresolved_steps(every)),
            app=self._app.settings.app,
        )
        if CallView(self._app.registry).has_secrets(run):
            # The key of a limit may be a secret of the call.
            run = run._replace(lane=shown_lane(run.lane))
        return why(run, situation)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the end of the run.

        Return the task's result, or raise if the run did not succeed.

        If no worker claims the run within five seconds, the reason is logged. The error of a wait
        that timed out contains it too.
        """
        for pause in ResultPoll(self, timeout):
            threading.Event().wait(pause)
        return self._unpack()

    async def aresult(self, timeout: float | None = None) -> R:  # noqa: ASYNC109 - as result()
        """Wait for the end of the run without blocking the event loop; see `result`."""
        looks = ResultPoll(self, timeout)
        while (pause := await asyncio.to_thread(next, looks, None)) is not None:  # noqa: ASYNC110
            await asyncio.sleep(pause)
        return self._unpack()

    def cancel(self, *, actor: str | None = None, reason: str = "") -> str:
        """Cancel a queued run, or request a running one to stop.

        Return "cancelled", "requested", or the final state that the run had reached before.
        """
        op = Cancel(check_run_id(self.id), resolve_actor(actor), check_reason(reason))
        answer = self._app.store.do(op)
        if answer is None:
            raise RunNotFound(self.id)
        return str(answer)

    def reschedule(
        self,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> Self:
        """Change when, how urgently and in which queue the run starts. Pass at least one of these.

        `delay` counts from now, so `delay=0` starts the run as soon as a worker is free. `at` needs
        a time zone. Without either, the run keeps its time.

        A run that is running or has ended raises RunNotRescheduled. So does one that waits in a
        step, one that was sent to the engine that carries it, and one that would not start before
        it expires. If the run is due, a move to a full queue raises QueueFull.
        """
        if delay is not None and at is not None:
            raise BadOption("pass delay= or at=, not both")
        if delay is None and at is None and priority is None and queue is None:
            raise BadOption("nothing would change: pass delay=, at=, priority= or queue=")
        op = RescheduleRun(
            check_run_id(self.id),
            resolve_actor(actor),
            check_reason(reason),
            delay=None if delay is None else microseconds("delay", delay),
            at=None if at is None else instant("at", at),
            priority=None if priority is None else check_priority(priority),
            queue=None if queue is None else check_queue(queue),
        )
        answer = self._app.store.do(op)
        if answer.state is None:
            raise RunNotFound(self.id)
        if queue is not None and answer.max_size is not None:
            raise QueueFull(queue, answer.max_size)
        if not answer.done:
            raise RunNotRescheduled(self.id, answer.refusal)
        return self.refresh()

    def retry(
        self,
        *,
        actor: str | None = None,
        reason: str = "",
        arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
        fresh_effects: bool = False,
        from_step: str | None = None,
    ) -> Self:
        """Queue the run again after its end: same id, next generation.

        New `arguments` (args, kwargs) are checked against the task's signature. Recorded steps are
        kept, and `effect_key` stays the same unless `fresh_effects` is set. `from_step` forgets
        that step and the steps that started after it, so that they run again. A run that ended in a
        step with `on_crash="hold"` is refused until you `resolve` that step, or `from_step` forgets
        it.
        """
        if from_step is not None and from_step not in {step.name for step in self.steps()}:
            raise BadOption(f"run {self.id} has no recorded step {from_step!r} to start from")
        op = self._retry_op(actor, reason, arguments)._replace(
            fresh_effects=fresh_effects, from_step=from_step
        )
        return self._check_retried(self._app.store.do(op))

    def resolve(
        self,
        *,
        done: bool,
        result: object = None,
        step: str | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> Self:
        """Record the result of the step that this run was interrupted in, and queue the run again.

        With `done=True` the step counts as completed, with this `result`. Otherwise it runs again.
        If the run was interrupted in several steps, resolve each by its name. The run continues
        after the last of them.
        """
        retry = self._retry_op(actor, reason, None)
        begun = unresolved_steps(self._app.store.list_steps(self.id))
        if self.state not in FINAL - {State.SUCCEEDED} or not begun:
            raise RunNotInterrupted(self.id, self.state)
        names = outermost_steps(begun)
        if (step is None and len(names) > 1) or (step is not None and step not in begun):
            raise BadOption(
                f"run {self.id} was interrupted in the steps {', '.join(names)}: name the step to "
                "resolve"
            )
        definition = self._app.registry.find(self.record.task)
        text = None if result is None else encode_value(result)
        if text is not None and definition is not None:
            text = definition.codec.seal(text)
        op = ResolveStep(retry, step or names[0], is_done=done, result=text)
        answer = self._app.store.do(op)
        if not answer.retried.unresolved:
            return self._check_retried(answer.retried)
        if not answer.steps:
            raise BadOption(
                f"another operator has already resolved step {op.step!r} of run {self.id}"
            )
        return self.refresh()

    def _retry_op(
        self,
        actor: str | None,
        reason: str,
        arguments: tuple[tuple[Any, ...], dict[str, Any]] | None,
    ) -> RetryRun:
        who, why = resolve_actor(actor), check_reason(reason)
        record = self.refresh().record
        definition = self._app.registry.find(record.task)
        text = None
        if arguments is not None:
            text = self._app.registry.get(record.task).codec.encode(*arguments)
        return RetryRun(
            self.id,
            who,
            why,
            arguments=text,
            generation=record.generation,
            lane=None if definition is None else _requeued_lane(definition, record, arguments),
            other_names=self._app.registry.other_names(record.task),
        )

    def _check_retried(self, redriven: RetriedRun) -> Self:
        if redriven.state is None:
            raise RunNotFound(self.id)
        if redriven.held_by is not None:
            raise RunNotFinal(redriven.held_by, redriven.state, retried=self.id)
        if redriven.unresolved:
            raise StepNotResolved(self.id, redriven.unresolved)
        if not redriven.done:
            raise RunNotFinal(self.id, redriven.state)
        return self.refresh()

    def attempts(self) -> list[AttemptRecord]:
        """Return the attempts that have ended, oldest first."""
        return self._app.store.list_attempts(self.id)

    def steps(self) -> list[StepRecord]:
        """Return the run's steps and waits, in order of their start."""
        return [step for step in self._app.store.list_steps(self.id) if step.name]

    def logs(self, limit: int = 1_000) -> list[LogLine]:
        """Return the lines that the run's attempts logged, oldest first."""
        return self._app.store.list_logs(self.id, limit)

    def _unpack(self) -> R:
        record = self.record
        match State(record.state):
            case State.SUCCEEDED:
                return self._decode(record)
            case State.FAILED:
                raise RunFailed(self.id, record.cause, record.error)
            case State.INTERRUPTED:
                raise RunInterrupted(self.id, record.cause)
            case State.CANCELLED:
                raise RunCancelled(self.id, record.cause)
            case other:
                message = f"run {self.id} is {other}"
                raise AssertionError(message)

    def _decode(self, record: RunRecord) -> R:
        definition = self._app.registry.find(record.task)
        result: R
        if definition is not None:
            result = definition.codec.decode_result(record.result)
        else:
            result = decode_value("null" if record.result is None else record.result)
        return result

    def __repr__(self) -> str:
        state = self._record.state if self._record else "state not read yet"
        return f"<run {self.id} {state}>"


class ResultPoll:
    """Iterates over the pauses between reads of a run, until the run is final.

    `explain` is called once if no worker claims the run, with its id, its task, and the reason.
    """

    def __init__(
        self,
        run: Run[Any],
        timeout: float | None,
        explain: Callable[[str, str, str], None] = log_unclaimed,
    ) -> None:
        self._run = run
        self._explain = explain
        self._timeout = timeout
        self._began = monotonic()
        self._pause = _FIRST_PAUSE
        self._explained = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> float:
        run = self._run.refresh()
        if run.is_final:
            raise StopIteration
        waited = monotonic() - self._began
        left = None if self._timeout is None else self._timeout - waited
        if left is not None and left <= 0:
            message = f"run {run.id} is still {run.state} after {self._timeout:g} s: {run.why()}"
            raise WorkerTimeout(message)
        if waited >= UNCLAIMED_SECONDS and not self._explained:
            self._explain_unclaimed(run)
        pause = self._pause
        self._pause = min(_LONGEST_PAUSE, pause * 1.5)
        return pause if left is None else min(pause, left)

    def _explain_unclaimed(self, run: Run[Any]) -> None:
        """Report once why no worker has claimed the run."""
        self._explained = True
        if run.record.state == State.QUEUED and not run.record.claim_number:
            self._explain(run.id, run.record.task, str(run.why()))


def _requeued_lane(
    definition: Definition,
    record: RunRecord,
    arguments: tuple[tuple[Any, ...], dict[str, Any]] | None,
) -> str:
    """Return the lane of a run that an operator queues again, perhaps with other arguments."""
    if arguments is not None:
        return definition.lane_of(*arguments)
    return with_slot(record.lane, definition.slot)


def check_reason(reason: str) -> str:
    """Return the reason of an operator action, or raise BadOption if it cannot be stored."""
    return check_words("reason", reason, REASON_CHARACTERS)

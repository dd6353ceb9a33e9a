"""Runs `async def` tasks on one event loop, its own thread's or the application's."""

import asyncio
import threading
import types
from collections import deque
from collections.abc import Coroutine, Generator, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, NamedTuple

from duly.clock import monotonic
from duly.context import RunContext, WorkerPort, current, end_body, set_current
from duly.core.outcome import Cancelled, Outcome, Returned, Stopped
from duly.core.record import fast_constructor
from duly.open_steps import OpenSteps
from duly.worker.attempt import await_body, await_untraced, outcome_of
from duly.worker.ended_body import EndedBody, EndedBodyCallback, classify_cancel
from duly.worker.inflight import LOOP, InFlightClaim, InFlightClaims
from duly.worker.process_lifetime import ForkCounter, exit_forked_process
from duly.worker.runners.loop_shutdown import LoopShutdownMonitor
from duly.worker.step_drain import await_step_drain, check_steps

_SLICE_SECONDS = 0.002
"""How long bodies may begin one after the other before the loop turns to something else."""
_FLUSH_SECONDS = 0.01
"""How long an end may wait for others while bodies end one after the other."""

_LOOP_ENDED = Stopped("its event loop was closed")

_ended = fast_constructor(EndedBody)
_Body = Coroutine[Any, Any, None]
_Waiting = tuple[str, _Body, Context, Any]


class _SuspendedBody(NamedTuple):
    """A body that has to wait."""

    task: asyncio.Task[None]
    context: Context


class EventLoopRunner:
    """At most `limit` bodies at once; further claims wait their turn here."""

    def __init__(
        self,
        hand: InFlightClaims,
        report: EndedBodyCallback,
        port: WorkerPort,
        *,
        limit: int,
        lookout: LoopShutdownMonitor | None = None,
    ) -> None:
        """Make a runner on a loop of its own, or on the application's with a `lookout` there."""
        self._hand = hand
        self._report = report
        self._port = port
        self._limit = limit
        self._context = copy_context()
        self._waiting: deque[InFlightClaim] = deque()
        self._going: dict[str, _SuspendedBody] = {}
        self._giving_up = threading.Lock()
        self._given_up_behind: set[str] = set()
        """Bodies whose last steps somebody waits for, as their loop is closed."""
        self._beginner: asyncio.Task[None] | None = None
        """The task that begins bodies just now; it may come to keep one of them."""
        self._ended: list[EndedBody] = []
        self._seconds = 0.0
        """How long the bodies that have ended took, all together."""
        self._flush_by = 0.0
        self._ended_at = 0.0
        """When the last body ended that did not have to wait, as a clock that costs nothing."""
        self._forks = ForkCounter.forks
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        if lookout is not None:
            self._loop = lookout.loop
        self._is_ours = lookout is None
        self._is_stopping = False
        self._lookout = lookout

    def start(self) -> None:
        """Start the loop's thread, if it is our own."""
        if self._lookout is not None:
            self._lookout.begin()
        else:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._serve, args=(self._loop,), name="duly-loop", daemon=True
            )
            self._thread.start()

    def is_alive(self) -> bool:
        """Return whether its thread runs; a loop of the application's is not its matter."""
        return self._thread is None or self._thread.is_alive()

    def submit(self, batch: Sequence[InFlightClaim]) -> None:
        """Hand over a batch; one hop for all of it."""
        with suppress(RuntimeError):  # It is closed; the worker hands back what did not start.
            self._loop.call_soon_threadsafe(self._accept, batch)

    def cancel(self, held: InFlightClaim, why: str) -> None:
        """End a body from outside, at its next await."""
        held.cancel = why
        with suppress(RuntimeError):  # It is closed; a look tells of what stands still there.
            self._loop.call_soon_threadsafe(self._cancel, held.claim.run_id)

    def look(self) -> None:
        """Look whether the application has ended its loop; tell of it, and of what it left."""
        if self._lookout is not None and self._lookout.is_shutting_down():
            if self._loop.is_closed():
                self._give_up()
            self._lookout.ended()

    def _give_up(self) -> None:
        """Tell of the bodies that stand still on a closed loop: nobody can go on with them.

        Of those that are in steps elsewhere, in threads, it is told when these have ended.
        """
        with self._giving_up:
            ended, self._ended = self._ended, []
            for run_id, going in tuple(self._going.items()):
                # Said first: no thread of it may begin a step that nobody waits for here.
                steps = end_body(going.context.run(current))
                if steps is not None:
                    steps.forget_closed_loops()
                held = self._hand.get(run_id)
                if held is not None and steps is not None and not steps.is_empty():
                    self._give_up_behind(run_id, steps)
                    continue
                self._going.pop(run_id, None)
                if held is not None:
                    seconds = monotonic() - (held.started_at or monotonic())
                    self._hand.mark_end(held)
                    ended.append(EndedBody(held, _LOOP_ENDED, seconds))
                    self._seconds += seconds
            self._tell(ended)

    def _give_up_behind(self, run_id: str, steps: OpenSteps) -> None:
        def wait() -> None:
            steps.cancel_all()
            steps.wait()
            self._given_up_behind.discard(run_id)
            self._give_up()

        if run_id not in self._given_up_behind:
            self._given_up_behind.add(run_id)
            threading.Thread(target=wait, name="duly-step-drain", daemon=True).start()

    def stop(self) -> None:
        """End the loop's thread, if it is our own; the bodies have ended before."""
        if self._lookout is not None:
            self._lookout.end()
        if self._thread is not None:
            self._is_stopping = True
            with suppress(RuntimeError):  # It is closed: somebody else has ended it meanwhile.
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while not self._is_stopping:
                # A body may stop the loop, or a part of it raise SystemExit or the like, which
                # asyncio lets through. The other bodies continue where they were.
                with suppress(SystemExit, KeyboardInterrupt):
                    loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _is_over(self) -> bool:
        return self._lookout is not None and self._lookout.is_shutting_down()

    def _accept(self, batch: Sequence[InFlightClaim]) -> None:
        self._waiting.extend(batch)
        self._fill()

    def _fill(self) -> None:
        has_room = self._beginner is None and len(self._going) < self._limit
        if self._waiting and has_room and not self._is_over():
            context = self._context.copy()
            # Not by the loop's factory, which may run it at once, before it is known here.
            self._beginner = asyncio.Task(self._begin_bodies(), loop=self._loop, context=context)
            # Somebody may cancel it before its first step.
            self._beginner.add_done_callback(self._end_beginning)

    def _end_beginning(self, task: asyncio.Task[None]) -> None:
        if self._beginner is task:
            self._beginner = None
            self._fill()

    def _cancel(self, run_id: str) -> None:
        going = self._going.get(run_id)
        if going is not None:
            going.task.cancel()

    async def _begin_bodies(self) -> None:
        """Begin bodies one after the other; the first that has to wait keeps this task.

        Most short bodies end without waiting, and a task for each costs more than they do.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        try:
            waiting = self._begin_until_one_waits(task)
        finally:
            self._end_beginning(task)
        if waiting is not None:
            run_id, body, context, awaited = waiting
            try:
                await _resume_body(body, context, awaited, self._forks)
            finally:
                self._going.pop(run_id, None)
                self._fill()

    def _begin_until_one_waits(self, task: asyncio.Task[None]) -> _Waiting | None:
        self._ended_at = monotonic()
        until = self._ended_at + _SLICE_SECONDS
        # A body that cancelled its own task and returned must not cancel the next one.
        while self._waiting and self._ended_at < until and not task.cancelling():
            held = self._waiting.popleft()
            # Not in the context of another body: its variables are its own.
            context = self._context.copy()
            body = self._run(held)
            try:
                awaited = context.run(body.send, None)
            except StopIteration:
                continue
            self._going[held.claim.run_id] = _SuspendedBody(task, context)
            return held.claim.run_id, body, context, awaited
        return None

    async def _run(self, held: InFlightClaim) -> None:
        if not self._hand.begin(held):
            return  # The worker hands back what it did not start.
        claim, definition = held.claim, held.definition
        started_at = held.started_at or monotonic()
        timeout = definition.timeout
        deadline = None if timeout is None else started_at + timeout
        context = RunContext(claim, self._port, deadline)
        set_current(context)
        outcome: Outcome
        if held.cancel is None:
            try:
                # For most bodies: asking for the loop, and one coroutine more, cost as much as
                # some do.
                if definition.tracing is None:
                    outcome = await await_untraced(definition, claim.arguments, self._loop)
                else:
                    outcome = await await_body(definition, claim.arguments)
                steps = end_body(context)
                if steps is not None:
                    is_ended = held.cancel is not None
                    outcome = await await_step_drain(
                        steps, context, outcome, definition, is_ended=is_ended
                    )
                outcome = check_steps(context, outcome, definition, claim.arguments)
            except Exception as error:  # noqa: BLE001 - whatever it is, the run must not stay running
                outcome = outcome_of(error, definition, claim.arguments)
        else:
            outcome = Cancelled("requested")  # Before it could begin.
        if ForkCounter.forks != self._forks:
            exit_forked_process()
        self._ended_at = monotonic()
        seconds = self._ended_at - started_at
        self._hand.mark_end(held)
        if held.cancel is not None or type(outcome) is not Returned:
            outcome = self._seen_from_outside(held, outcome)
        self._ended.append(_ended((held, outcome, seconds)))
        self._seconds += seconds
        if len(self._ended) == 1:
            self._flush_by = self._ended_at + _FLUSH_SECONDS
            self._loop.call_soon(self._flush, context=self._context)

    def _seen_from_outside(self, held: InFlightClaim, outcome: Outcome) -> Outcome:
        is_cancelled = isinstance(outcome, Cancelled) and outcome.cause == "requested"
        if is_cancelled and held.cancel is None and self._is_over():
            return _LOOP_ENDED
        return classify_cancel(held, outcome)

    def _flush(self) -> None:
        if self._waiting and not self._going and monotonic() < self._flush_by:
            # More ends are about to come.
            self._loop.call_soon(self._flush, context=self._context)
            return
        ended, self._ended = self._ended, []
        is_free = self._is_ours and not self._waiting and not asyncio.all_tasks(self._loop)
        self._tell(ended, is_free=is_free)

    def _tell(self, ended: list[EndedBody], *, is_free: bool = False) -> None:
        if ended:
            self._hand.make_room(LOOP, len(ended), self._seconds)
            self._seconds = 0.0
            self._report(ended, is_free=is_free)


@types.coroutine
def _resume_body(
    body: _Body,
    context: Context,
    awaited: Any,  # noqa: ANN401
    forks: int,
) -> Generator[Any, Any, None]:
    """Go on with a body that has to wait, in its own context, as a part of the running task."""
    while True:
        try:
            step, value = body.send, (yield awaited)
        except GeneratorExit:
            context.run(body.close)  # Which the collector may have done before.
            raise
        except BaseException as error:  # noqa: BLE001 - a cancel, most often, and the body's matter
            step, value = body.throw, error
        if ForkCounter.forks != forks:
            exit_forked_process()
        try:
            awaited = context.run(step, value)
        except StopIteration:
            return

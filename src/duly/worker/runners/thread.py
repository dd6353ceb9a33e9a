"""Runs `def` tasks on threads, and hands `executor="process"` tasks to subprocesses."""

import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context

from duly.clock import monotonic
from duly.context import RunContext, WorkerPort, set_current
from duly.core.outcome import Outcome
from duly.errors import AttemptTimedOut, CancelRequested
from duly.interrupts import allow_interrupts, disallow_interrupts, raise_pending_interrupt
from duly.worker.attempt import call_body, check_arguments, outcome_of
from duly.worker.ended_body import EndedBody, EndedBodyCallback, classify_cancel
from duly.worker.inflight import InFlightClaim, InFlightClaims
from duly.worker.process_lifetime import ForkCounter, exit_forked_process
from duly.worker.step_drain import wait_for_step_drain

_AGAIN_SECONDS = 5.0
RunInProcess = Callable[[InFlightClaim], Outcome]
Conclude = Callable[[InFlightClaim, Outcome, float], Outcome | None]
"""Ends a transactional attempt in its own transaction; None if that recorded it."""


class ThreadRunner:
    """A fixed number of threads, each with one body at a time."""

    def __init__(
        self,
        hand: InFlightClaims,
        report: EndedBodyCallback,
        port: WorkerPort,
        *,
        limit: int,
        run_in_process: RunInProcess,
        conclude: Conclude,
    ) -> None:
        self._hand = hand
        self._report = report
        self._port = port
        self._run_in_process = run_in_process
        self._conclude = conclude
        self._queue: queue.SimpleQueue[InFlightClaim | None] = queue.SimpleQueue()
        self._forks = ForkCounter.forks
        self._bodies: dict[str, _RunningBody] = {}
        self._threads = [
            threading.Thread(target=self._serve, name=f"duly-run-{number}", daemon=True)
            for number in range(1, limit + 1)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def is_alive(self) -> bool:
        """Return whether all threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def submit(self, batch: Sequence[InFlightClaim]) -> None:
        """Hand over a batch."""
        for held in batch:
            self._queue.put(held)

    def interrupt(self, held: InFlightClaim, error: type[BaseException]) -> None:
        """Raise an exception inside a body; it strikes at the body's next bytecode, if ever."""
        body = self._bodies.get(held.claim.run_id)
        if body is not None:
            body.interrupt(error)

    def stop(self) -> None:
        """Let the threads end once they are free; a stuck body keeps its thread."""
        for _ in self._threads:
            self._queue.put(None)

    def _serve(self) -> None:
        while (held := self._queue.get()) is not None:
            with contextlib.suppress(AttemptTimedOut, CancelRequested):
                self._run(held)

    def _run(self, held: InFlightClaim) -> None:
        if not self._hand.begin(held):
            return
        started_at = held.started_at or monotonic()
        try:
            outcome = self._call(held, started_at)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run must not stay running
            outcome = outcome_of(error, held.definition, held.claim.arguments)
        if ForkCounter.forks != self._forks:
            exit_forked_process()
        seconds = monotonic() - started_at
        remaining: Outcome | None
        try:
            remaining = self._conclude(held, classify_cancel(held, outcome), seconds)
        except Exception as error:  # noqa: BLE001 - whatever it is, this thread has to go on
            remaining = outcome_of(error, held.definition, held.claim.arguments)
        self._hand.end(held, seconds)
        if remaining is None:
            self._hand.release([held])
        else:
            self._report([EndedBody(held, remaining, seconds)])

    def _call(self, held: InFlightClaim, started_at: float) -> Outcome:
        if held.definition.executor == "process":
            # Looked at here, so that no subprocess is begun for what cannot run.
            unreadable = check_arguments(held.definition, held.claim.arguments)
            return unreadable or self._run_in_process(held)
        timeout = held.definition.timeout
        deadline = None if timeout is None else started_at + timeout
        context = RunContext(held.claim, self._port, deadline)
        body = _RunningBody()
        self._bodies[held.claim.run_id] = body
        try:
            # What a body sets in its context variables is not for the next one on this thread.
            outcome = copy_context().run(_call_within, context, held)
            body.end()
        except (AttemptTimedOut, CancelRequested) as error:
            # It struck between the body's return and here: the body had not been recorded yet.
            body.end()
            outcome = outcome_of(error, held.definition, held.claim.arguments)
        except BaseException:
            body.end()
            raise
        finally:
            self._bodies.pop(held.claim.run_id, None)
        return wait_for_step_drain(context, outcome, held.definition, held.claim.arguments)


def _call_within(context: RunContext, held: InFlightClaim) -> Outcome:
    set_current(context)
    return call_body(held.definition, held.claim.arguments)


class _RunningBody:
    """One running body, and the exception that may be on its way to it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._shield = allow_interrupts()
        self._running = True
        self._struck_at = -_AGAIN_SECONDS

    def interrupt(self, error: type[BaseException]) -> None:
        """Strike it, unless its thread shields itself: then the caller has to try again."""
        now = monotonic()
        # A destructor may have swallowed the first one.
        if now - self._struck_at < _AGAIN_SECONDS:
            return

        def throw() -> None:
            if self._running:
                self._struck_at = now
                self._shield.thrown = error
                _raise_in_thread(self._thread, error)

        self._shield.interrupt(throw)

    def end(self) -> None:
        """Let nothing strike any more; what is on its way is taken back."""
        with self._shield.lock:
            self._running = False
            if self._shield.was_interrupted:
                # Nothing in its place would be quicker, but until 3.13 the interpreter would then
                # look for it for ever: every call in the process costs more, and tracing hangs.
                with contextlib.suppress(_InterruptWithdrawn):
                    _raise_in_thread(self._thread, _InterruptWithdrawn)
                    raise_pending_interrupt()
        disallow_interrupts()


class _InterruptWithdrawn(BaseException):
    """Takes the place of what is on its way to a body that has ended, and strikes at once."""


# By its name, it is an object of our own: the attribute of that name is everybody's, and what is
# declared of its types holds for all.
_set_async_exc = ctypes.pythonapi["PyThreadState_SetAsyncExc"]


def _raise_in_thread(thread: int, error: type[BaseException]) -> None:
    _set_async_exc(ctypes.c_ulong(thread), ctypes.py_object(error))

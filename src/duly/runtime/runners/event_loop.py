"""Runs `async def` tasks on one event loop, its own thread's or the application's."""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from contextvars import copy_context

from duly.clock import monotonic
from duly.context import Port, RunContext, enter
from duly.runtime.attempt import Call, await_body, prepare
from duly.runtime.hand import Hand, Held
from duly.runtime.report import Ended, Report, seen_from_outside


class EventLoopRunner:
    """At most `limit` bodies at once; further claims wait their turn here."""

    def __init__(
        self,
        hand: Hand,
        report: Report,
        port: Port,
        *,
        limit: int,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._hand = hand
        self._report = report
        self._port = port
        self._limit = limit
        self._context = copy_context()
        self._waiting: deque[Held] = deque()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: list[Ended] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        if loop is not None:
            self._loop = loop
        self._is_ours = loop is None

    def start(self) -> None:
        """Start the loop's thread, if it is our own."""
        if self._is_ours:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._serve, args=(self._loop,), name="duly-loop", daemon=True
            )
            self._thread.start()

    def submit(self, batch: Sequence[Held]) -> None:
        """Hand over a batch; one hop for all of it."""
        self._loop.call_soon_threadsafe(self._accept, batch)

    def cancel(self, held: Held, why: str) -> None:
        """End a body from outside, at its next await."""
        held.cancel = why
        self._loop.call_soon_threadsafe(self._cancel, held.claim.run_id)

    def stop(self) -> None:
        """End the loop's thread, if it is our own; the bodies have ended before."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while not _runs_to_its_end(loop):
                pass  # A part of a body raised SystemExit or the like, which asyncio lets through.
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _accept(self, batch: Sequence[Held]) -> None:
        self._waiting.extend(batch)
        self._fill()

    def _fill(self) -> None:
        create_task, tasks, waiting = self._loop.create_task, self._tasks, self._waiting
        while waiting and len(tasks) < self._limit:
            held = waiting.popleft()
            # Not in the context of the body that made room: its variables are its own.
            context = self._context.copy()
            tasks[held.claim.run_id] = create_task(self._run(held), context=context)

    def _cancel(self, run_id: str) -> None:
        task = self._tasks.get(run_id)
        if task is not None:
            task.cancel()

    async def _run(self, held: Held) -> None:
        claim = held.claim
        call = prepare(claim, held.definition)
        if not self._hand.begin(held):
            # The worker hands back what it did not start.
            self._tasks.pop(claim.run_id, None)
            self._fill()
            return
        started_at = held.started_at or monotonic()
        if isinstance(call, Call):
            timeout = held.definition.timeout
            deadline = None if timeout is None else started_at + timeout
            enter(RunContext(claim, self._port, deadline))
            outcome = await await_body(held.definition, call)
        else:
            outcome = call
        seconds = monotonic() - started_at
        self._tasks.pop(claim.run_id, None)
        self._hand.end(held, seconds)
        self._ended.append(Ended(held, seen_from_outside(held, outcome), seconds))
        if len(self._ended) == 1:
            self._loop.call_soon(self._flush)
        if self._waiting:
            self._fill()

    def _flush(self) -> None:
        ended, self._ended = self._ended, []
        self._report(ended)


def _runs_to_its_end(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        loop.run_forever()
    except (SystemExit, KeyboardInterrupt):
        return False
    return True

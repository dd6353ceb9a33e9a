"""An asyncio program with plugins: one runs duly's worker, another sends metrics to statsd.

`python -m examples.plugin_host` enqueues three runs, works on them, and prints what it would send.
Its database is the one that DULY_URL names.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from duly import Duly
from duly.extend import (
    EmbeddedWorker,
    EndedAttempt,
    check_worker_settings,
    on_attempt_end,
    report_error,
    run_in_thread,
)


class Plugin(Protocol):
    """A part of the host, which starts its parts in order and stops them in the opposite order."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class WorkerPlugin:
    def __init__(self, app: Duly, *, concurrency: int, queues: str) -> None:
        # A wrong setting is refused here, where it is written, and not when the host starts.
        check_worker_settings(app, concurrency=concurrency, queues=queues)
        self._app = app
        self._concurrency = concurrency
        self._queues = queues
        self._worker: EmbeddedWorker | None = None

    async def start(self) -> None:
        # If the host is stopped meanwhile, the worker that has just started is stopped too, and
        # does not wait for tasks that have begun.
        self._worker = await run_in_thread(self._begin, undo=lambda worker: worker.stop(grace=0))

    def _begin(self) -> EmbeddedWorker:
        return self._app.worker(concurrency=self._concurrency, queues=self._queues).start()

    async def stop(self) -> None:
        if self._worker is not None:
            await run_in_thread(self._worker.stop)


class StatsdPlugin:
    """Sends a counter and a timer for each attempt, from a thread of its own."""

    def __init__(self, app: Duly, send: Callable[[str], None]) -> None:
        self._app = app
        self._send = send
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send_all, name="statsd")
        on_attempt_end(app, self._take)

    async def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._lines.put(None)
        await run_in_thread(self._thread.join)

    def _take(self, ended: EndedAttempt) -> None:
        # The worker waits for this method, so it only takes note.
        name = ended.task.rpartition(":")[2]
        self._lines.put(f"tasks.{name}.{ended.outcome}:1|c")
        self._lines.put(f"tasks.{name}.duration:{ended.duration.total_seconds() * 1000:.0f}|ms")

    def _send_all(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._send(line)
            except OSError as error:
                report_error(self._app, "the statsd plugin", error)


app = Duly()


@app.task(retries=1)
def resize(picture: str) -> str:
    return f"{picture} is small now"


async def main() -> None:
    plugins: list[Plugin] = [
        StatsdPlugin(app, print),
        WorkerPlugin(app, concurrency=2, queues="default"),
    ]
    for plugin in plugins:
        await plugin.start()
    runs = [await resize.aenqueue(f"{name}.png") for name in ("cat", "dog", "tree")]
    results = [await run.aresult(timeout=30) for run in runs]
    for plugin in reversed(plugins):
        await plugin.stop()
    # Only now: the thread of the statsd plugin also prints, and lines of two threads can mix.
    print(*results, sep="\n")
    await run_in_thread(app.close)


if __name__ == "__main__":
    asyncio.run(main())

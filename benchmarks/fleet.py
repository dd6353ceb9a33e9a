"""Runs many worker processes on one store. Some of them cannot take the enqueued runs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.processes import ROOT, as_installed
from benchmarks.tasks import app, stay
from duly.worker.process_lifetime import die_with_parent

START_SECONDS = 120.0
OTHER_QUEUE = "elsewhere"
SLOTS = 2


def main(url: str, queues: str) -> None:
    """Run one worker that has room for a few coroutines, until this process is killed."""
    die_with_parent(os.getppid())
    app.use_url(url)
    with app.worker(queues=queues, async_limit=SLOTS, concurrency=SLOTS):
        print("started", flush=True)
        sys.stdin.read()


@contextmanager
def fleet(url: str, count: int, disturbance: str, *, rest: float) -> Iterator[None]:
    """Start a number of workers. Half of them are "full", "frozen" or on "other queues"."""
    affected = 0 if disturbance == "none" else count // 2
    processes = []
    try:
        for number in range(count):
            queues = f"default,{own_queue(number)}"
            if disturbance == "other queues" and number < affected:
                queues = OTHER_QUEUE
            processes.append(_start(url, queues))
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n", "a worker did not start"
        if disturbance == "full":
            for number in range(affected):
                for _ in range(SLOTS):
                    stay.using(queue=own_queue(number)).enqueue()
            _wait_until_running(affected * SLOTS)
        # Each worker reads from time to time which other workers there are.
        time.sleep(rest)
        if disturbance == "frozen":
            for process in processes[:affected]:
                os.kill(process.pid, signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def own_queue(number: int) -> str:
    """Return the name of a queue that only one worker of the fleet serves."""
    return f"own-{number}"


def _start(url: str, queues: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "benchmarks.fleet", url, queues],
        cwd=ROOT,
        env=as_installed(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _wait_until_running(count: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while len(app.runs.list(task=stay, state="running", limit=count + 1)) < count:
        assert time.monotonic() < deadline, "the workers did not become full"
        time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])

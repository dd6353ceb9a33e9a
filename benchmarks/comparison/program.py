"""The program that is measured: it runs unchanged on both builds, so it uses public names only.

`python program.py WORKLOAD COUNT` measures one workload on the store that DULY_URL names and prints
a speed. A higher speed is better: runs, calls or steps per second, or one over a latency.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median

import duly

DEADLINE_SECONDS = 120.0
CALLERS = 100
STEPS_PER_RUN = 10
GAP_SECONDS = 0.01

app = duly.Duly(os.environ["DULY_URL"])
_started = count(1)
_first_start = 0.0


@app.task
async def noop(number: int) -> None:
    """Do nothing."""


@app.task
async def drained(total: int) -> None:
    """Do nothing; the last run of the process reports how fast all of them started."""
    global _first_start  # noqa: PLW0603 - the worker process has no other place for it
    number = next(_started)
    if number == 1:
        _first_start = time.perf_counter()
    if number == total:
        speed = (total - 1) / (time.perf_counter() - _first_start)
        await asyncio.to_thread(_report_file().write_text, str(speed))


@app.task
async def tell_delay(called_at: float) -> float:
    """Return how long ago the caller enqueued this run; both processes read one clock."""
    return time.monotonic() - called_at


@app.task
def stepped(number: int) -> None:  # noqa: ARG001 - every run has an argument of its own
    """Record steps that do nothing."""
    for step in range(STEPS_PER_RUN):
        duly.step(f"step-{step}", _nothing)


@app.task(transaction=True)
def transactional(number: int) -> None:
    """Commit a transaction of its own."""


def measure_drain(runs: int) -> float:
    """A worker process empties a full queue."""
    app.enqueue_many(drained.call(runs) for _ in range(runs))
    report = _report_file()
    with _worker() as worker:
        _wait_until(lambda: report.exists() and bool(report.read_text()), worker)
    return float(report.read_text())


def measure_enqueue(calls: int) -> float:
    """One caller enqueues one run after another."""
    noop.enqueue(0)
    return _rate(calls, lambda: [noop.enqueue(number) for number in range(calls)])


def measure_keyed_enqueue(calls: int) -> float:
    """One caller enqueues runs that have keys."""
    noop.using(key="first").enqueue(0)
    return _rate(calls, lambda: [noop.using(key=f"key {n}").enqueue(n) for n in range(calls)])


def measure_aenqueue(calls: int) -> float:
    """Many coroutines enqueue at the same time."""

    async def call() -> None:
        for number in range(calls // CALLERS):
            await noop.aenqueue(number)

    async def call_concurrently() -> None:
        await asyncio.gather(*(call() for _ in range(CALLERS)))

    noop.enqueue(0)
    return _rate(calls, lambda: asyncio.run(call_concurrently()))


def measure_enqueue_many(runs: int) -> float:
    """One call enqueues many runs."""
    noop.enqueue(0)
    return _rate(runs, lambda: app.enqueue_many(noop.call(number) for number in range(runs)))


def measure_latency(calls: int) -> float:
    """One over the median time from the call of `enqueue` to the start of the run."""
    with _worker():
        tell_delay.enqueue(time.monotonic()).result(timeout=DEADLINE_SECONDS)
        delays = []
        for _ in range(calls):
            time.sleep(GAP_SECONDS)
            run = tell_delay.enqueue(time.monotonic())
            delays.append(run.result(timeout=DEADLINE_SECONDS))
    return 1 / median(delays)


def measure_lone_run(calls: int) -> float:
    """A caller enqueues a run and waits for its result before it enqueues the next one."""
    with _worker():
        noop.enqueue(0).result(timeout=DEADLINE_SECONDS)
        return _rate(
            calls, lambda: [noop.enqueue(n).result(timeout=DEADLINE_SECONDS) for n in range(calls)]
        )


def measure_steps(runs: int) -> float:
    """Runs record steps."""
    return _drain_embedded(stepped, runs) * STEPS_PER_RUN


def measure_transactions(runs: int) -> float:
    """Runs commit transactions of their own."""
    return _drain_embedded(transactional, runs)


WORKLOADS: dict[str, Callable[[int], float]] = {
    "drain": measure_drain,
    "enqueue": measure_enqueue,
    "keyed enqueue": measure_keyed_enqueue,
    "aenqueue": measure_aenqueue,
    "enqueue_many": measure_enqueue_many,
    "latency": measure_latency,
    "lone run": measure_lone_run,
    "steps": measure_steps,
    "transactions": measure_transactions,
}


def _drain_embedded(task: "duly.Task[..., None]", runs: int) -> float:
    """Return how many runs per second a worker in this process finishes."""
    first = task.enqueue(0)
    with app.worker():
        first.result(timeout=DEADLINE_SECONDS)

        def run_all() -> None:
            for run in app.enqueue_many(task.call(number) for number in range(runs)):
                run.result(timeout=DEADLINE_SECONDS)

        return _rate(runs, run_all)


def _rate(amount: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return amount / (time.perf_counter() - began)


def _report_file() -> Path:
    return Path(os.environ["COMPARISON_REPORT"])


@contextmanager
def _worker() -> Iterator["subprocess.Popen[bytes]"]:
    """Run `duly worker` of this build with its default settings."""
    command = [sys.executable, "-m", "duly", "worker", f"{Path(__file__).stem}:app", "--quiet"]
    worker = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - our own program
    try:
        yield worker
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
            raise


def _wait_until(condition: Callable[[], bool], worker: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if worker.poll() is not None:
            raise RuntimeError(f"the worker ended with status {worker.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the worker did not finish within {DEADLINE_SECONDS:g} s")
        time.sleep(0.02)


def _nothing() -> None:
    pass


def main() -> None:
    """Measure one workload and print its speed."""
    name, amount = sys.argv[1], int(sys.argv[2])
    print(WORKLOADS[name](amount))
    app.close()


if __name__ == "__main__":
    main()

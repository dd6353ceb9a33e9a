"""Tasks that other processes import too: subprocesses of the process runner, and keepers' children.

The tests tell the application which store to use; a keeper's children are told by their keeper.
"""

import asyncio
import contextvars
import ctypes
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from duly import ClaimLost, Discard, Duly, Retry, RetryAfter, Snooze, astep, current, faultpoints
from tests.servers.processes import is_running

app = Duly()
flavour: contextvars.ContextVar[str] = contextvars.ContextVar("flavour", default="plain")


def note(path: str, text: str) -> None:
    """Add a line to a file, in one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def wait_for(path: str, seconds: float = 60.0) -> None:
    """Wait until a file exists."""
    deadline = time.monotonic() + seconds
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.02)


# -- bodies in subprocesses --


@app.task(executor="process")
def in_process(value: Any) -> Any:
    """Return the value and say where it was seen."""
    context = current()
    context.log.info("seen in %s", os.getpid())
    return {"value": value, "pid": os.getpid(), "run": context.run_id, "attempt": context.attempt}


@app.task(executor="process")
async def in_process_async(number: int) -> int:
    """Run a coroutine in a subprocess."""
    await asyncio.sleep(0)
    return number * 2


@app.task(executor="process")
async def forget_a_step_in_process() -> None:
    """Call a step without `await`, in a subprocess."""
    astep("charge", str)


@app.task(executor="process", retries=Retry(2, base=0.01, factor=1, jitter=False))
def process_ends(how: str) -> str:
    """End as told, in a subprocess."""
    match how:
        case "raise":
            message = "no luck"
            raise LookupError(message)
        case "exit":
            raise SystemExit(3)
        case "snooze" if current().fence == 1:
            raise Snooze(0.01)
        case "later" if current().attempt == 1:
            raise RetryAfter(0.01)
        case "discard":
            raise Discard("not needed")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "far":
            current().progress(7.0)
    return how


@app.task
def says_and_dies(count: int) -> int:
    """Log lines and die at once in the first attempt; only log in the second."""
    for number in range(count):
        current().log.info(f"line {number} of claim {current().fence}")
    if current().fence == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return count


@app.task(executor="process")
def process_leaves_programs(log: str) -> None:
    """Start programs and processes that outlive this process, and die as by a lack of memory."""
    # One with all descriptors of this process, and one that is forked and runs no other program.
    subprocess.Popen(["sh", "-c", LASTING, log], close_fds=False)
    if os.fork() == 0:
        note(log, f"pid {os.getpid()}")
        time.sleep(600)
    count = 2 * current().attempt
    while len(noted_programs(log)) < count:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(executor="process", timeout=0.5)
def process_stuck(started: str) -> None:
    """Never end, and hear no signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(started, str(os.getpid()))
    while True:
        time.sleep(60)


@app.task(executor="process")
def process_waits(started: str) -> None:
    """Never end."""
    note(started, str(os.getpid()))
    time.sleep(600)


@app.task(executor="process")
def process_checks(started: str) -> None:
    """Look for a cancel until there is one."""
    note(started, str(os.getpid()))
    while True:
        current().check_cancelled()
        time.sleep(0.01)


_after_end, _spoken = threading.Event(), threading.Event()


@app.task(executor="process")
def process_leaves_thread() -> int:
    """Leave a thread behind that speaks and asks while the next body of this process runs."""
    context = current()

    def speak() -> None:
        _after_end.wait(60)
        context.log.info("from the body before")
        context.progress(0.9, "from the body before")
        with suppress(ClaimLost):
            context.check_cancelled()
            context.log.info("it was answered")
        _spoken.set()

    threading.Thread(target=speak, daemon=True).start()
    return os.getpid()


@app.task(executor="process")
def process_lets_thread_speak() -> int:
    """Wait until the thread of the body before has spoken."""
    current().log.info("of this body")
    _after_end.set()
    if not _spoken.wait(60):
        raise TimeoutError
    return os.getpid()


@app.task(executor="process")
def process_flavour(new: str) -> str:
    """Return the context variable, then change it."""
    before = flavour.get()
    flavour.set(new)
    return before


@app.task(executor="process", name="typed")
def typed(when: datetime, amount: Decimal, who: UUID) -> dict[str, Any]:
    """Return what it was given, with its types."""
    return {"when": when.astimezone(UTC), "amount": amount, "who": who}


# -- bodies under a keeper --


@app.task
def linger(log: str, gate: str, number: int) -> int:
    """Note the start, wait for the gate, note the end."""
    context = current()
    note(log, f"start {number} {context.attempt} {context.fence} {os.getpid()}")
    wait_for(gate)
    note(log, f"end {number} {context.attempt} {context.fence} {os.getpid()}")
    return number


@app.task(on_crash="hold")
def linger_hold(log: str, gate: str, number: int) -> int:
    """As linger, at most once."""
    context = current()
    note(log, f"start {number} {context.attempt} {context.fence} {os.getpid()}")
    wait_for(gate)
    note(log, f"end {number} {context.attempt} {context.fence} {os.getpid()}")
    return number


@app.task
async def linger_async(log: str, gate: str, number: int) -> int:
    """As linger, on the event loop."""
    context = current()
    note(log, f"start {number} {context.attempt} {context.fence} {os.getpid()}")
    await asyncio.to_thread(wait_for, gate)
    note(log, f"end {number} {context.attempt} {context.fence} {os.getpid()}")
    return number


@app.task(executor="process")
def linger_process(log: str, gate: str, number: int) -> int:
    """As linger, in a subprocess."""
    context = current()
    note(log, f"start {number} {context.attempt} {context.fence} {os.getpid()}")
    wait_for(gate)
    note(log, f"end {number} {context.attempt} {context.fence} {os.getpid()}")
    return number


@app.task
def quick(number: int) -> int:
    """Return at once."""
    return number


@app.task
def hog(seconds: float) -> int:
    """Keep every other thread of this process from running, as careless C code does.

    A function that is called through `PyDLL` keeps the interpreter while it sleeps.
    """
    ctypes.PyDLL(None).usleep(round(seconds * 1_000_000))
    return os.getpid()


@app.task
def poison() -> None:
    """Kill the process it runs in."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def terminates_processes(count: int) -> list[int | None]:
    """Fork processes, terminate each at once, and return how they ended."""
    forking = multiprocessing.get_context("fork")
    found = []
    for _ in range(count):
        process = forking.Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join(5)
        found.append(process.exitcode)
        process.kill()
        process.join()
    return found


@app.task
def uses_a_pool(numbers: list[int]) -> list[int]:
    """Let a pool of forked processes work."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, numbers)


@app.task
async def stops_the_loop(gate: str) -> int:
    """Stop the event loop on which all coroutines of this worker run."""
    asyncio.get_running_loop().stop()
    await asyncio.to_thread(wait_for, gate)
    return 1


@app.task
def closes_the_app(*, elsewhere: bool) -> int:
    """Close the application's store, here or in a thread that duly knows nothing of."""
    if elsewhere:
        thread = threading.Thread(target=app.close)
        thread.start()
        thread.join()
    else:
        app.close()
    return len(app.runs.list())


@app.task
def ends_a_thread(name: str) -> None:
    """End a thread of the worker, as a hook does that raises SystemExit there."""
    strike = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
    for thread in threading.enumerate():
        if thread.name == name:
            strike(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))


LASTING = 'echo "pid $$" >> "$0"; exec sleep 600'
"""A program that notes its number and lasts longer than any test."""


@app.task
def starts_programs(log: str) -> list[int]:
    """Start lasting programs and wait; in a later attempt, return those that still run."""
    if current().attempt > 1:
        return [pid for pid in noted_programs(log) if is_running(pid)]
    program = ["sh", "-c", LASTING, log]
    subprocess.Popen(program)
    subprocess.Popen(program, start_new_session=True)
    # The parent of this one is gone before it begins.
    subprocess.run(["sh", "-c", 'setsid sh -c "$1" "$0" &', log, LASTING], check=True)
    time.sleep(600)
    return []


def noted_programs(log: str) -> list[int]:
    """Return the numbers of the programs that were started."""
    path = Path(log)
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split()[1]) for line in lines]


@app.task
def exits(log: str, status: int) -> None:
    """End the process it runs in, as C code does that calls exit."""
    note(log, f"start 0 {current().attempt} {current().fence} {os.getpid()}")
    os._exit(status)


@app.task
def leaves_a_fork() -> int:
    """Fork, let an error leave the new process, and return how that ended."""
    return _fork_and_raise()


@app.task
async def leaves_a_fork_async() -> int:
    """As above, beside other bodies on the same loop."""
    return _fork_and_raise()


def _fork_and_raise() -> int:
    pid = os.fork()
    if pid == 0:
        raise RuntimeError
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@app.task
def executes(log: str) -> None:
    """Put another program in the place of the worker's, in the same process."""
    note(log, f"start 0 {current().attempt} {current().fence} {os.getpid()}")
    os.execv("/bin/sleep", ["sleep", "300"])  # noqa: S606 - that is what this is about


@app.task
def exits_after_return(log: str) -> None:
    """Return, and leave a thread that ends the process, as a native thread that crashes.

    The thread strikes when the end of this body is about to be recorded, and no sooner.
    """
    note(log, f"start 0 {current().attempt} {current().fence} {os.getpid()}")
    has_returned = threading.Event()

    def end() -> None:
        has_returned.wait()
        os._exit(9)

    def hang() -> None:
        has_returned.set()
        threading.Event().wait()

    threading.Thread(target=end, daemon=True).start()
    faultpoints.arm("settle.before_commit", hang)


@app.task(timeout=0.3)
def stuck(log: str) -> None:
    """Sit in one call that no Python exception can end."""
    note(log, f"start 0 {current().attempt} {current().fence} {os.getpid()}")
    time.sleep(600)

"""Tasks that other processes import too: subprocesses of the process runner, and keepers' children.

The tests tell the application which store to use; a keeper's children are told by their keeper.
"""

import asyncio
import contextvars
import ctypes
import os
import signal
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from duly import Discard, Duly, Retry, RetryAfter, Snooze, current

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


@app.task(timeout=0.3)
def stuck(log: str) -> None:
    """Sit in one call that no Python exception can end."""
    note(log, f"start 0 {current().attempt} {current().fence} {os.getpid()}")
    time.sleep(600)

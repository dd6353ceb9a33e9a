"""A Celery application whose tasks note their effects, run by real workers.

The addresses of its broker, guard and notes come from the environment, as in any deployment.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

from celery.exceptions import SoftTimeLimitExceeded

from duly.guard import Guard
from duly.integrations.celery import AlreadyQueued, Celery, guard_of, send_to_dlq, use_guard
from tests.integrations.counter import tell

LEASE = 1.5

app = Celery("shop")
app.conf.update(
    # Redeliver the messages that a killed worker had fetched soon instead of after an hour.
    broker_transport_options={
        "visibility_timeout": 3,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 3,
    },
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    task_publish_retry=True,
)


def open_at(broker_url: str, guard_url: str) -> None:
    """Set the addresses of the messages and of the keys."""
    app.conf.update(broker_url=broker_url, result_backend=broker_url)
    use_guard(app, Guard(guard_url, lease=LEASE))


open_at(os.environ["SHOP_BROKER"], os.environ["SHOP_GUARD"])

__all__ = ["AlreadyQueued", "app", "guard_of"]


def note(what: str, subject: object) -> None:
    """Append a whole line: the effect that is counted."""
    place = os.open(os.environ["SHOP_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(place, f"{what} {subject} {os.getpid()}\n".encode())
    os.close(place)


def wait_for_gate() -> None:
    """Wait until the test opens the gate."""
    while not Path(os.environ["SHOP_NOTES"] + ".gate").exists():
        time.sleep(0.02)


@app.task
def charge(order_id: int, currency: str = "EUR") -> dict:
    """Have an effect that must not happen twice."""
    note("charged", order_id)
    return {"order": order_id, "currency": currency}


@app.task(bind=True, autoretry_for=(ConnectionError,), max_retries=2, default_retry_delay=0)
async def greet(self, name: str, failures: int = 0) -> str:
    """Run as a coroutine that has its effect after an await."""
    await asyncio.sleep(0)
    if self.request.retries < failures:
        raise ConnectionError("away")
    note("greeted", name)
    return f"hello {name}, fence {self.claim.fence}"


@app.task(max_retries=0)  # Postponing a message does not count as a retry.
def linger(order_id: int) -> int:
    """Wait at the gate."""
    note("began", order_id)
    wait_for_gate()
    note("ended", order_id)
    return order_id


@app.task(bind=True, max_retries=3)
def flaky(self, order_id: int, failures: int) -> int:
    """Fail a few times."""
    note("tried", order_id)
    if self.request.retries < failures:
        raise self.retry(exc=ConnectionError("away"), countdown=0)
    return order_id


@app.task
def broken(order_id: int) -> int:
    """Fail permanently, until the cause is repaired."""
    note("tried", order_id)
    if not Path(os.environ["SHOP_NOTES"] + ".mended").exists():
        raise ValueError("no such order")
    return order_id


@app.task(bind=True)
def gives_up(self, payload: dict) -> str:
    """Send itself to the dead letters, until the cause is repaired."""
    note("tried", payload["order"])
    try:
        if not Path(os.environ["SHOP_NOTES"] + ".mended").exists():
            payload["sku"]
    except KeyError:
        send_to_dlq(payload)
        return "never to be seen"
    return "done"


@app.task(crash_limit=2)
def deadly(order_id: int) -> None:
    """Kill its own process."""
    note("tried", order_id)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(time_limit=1)
def endless(order_id: int) -> None:
    """Run until the hard limit."""
    note("tried", order_id)
    time.sleep(60)


@app.task(soft_time_limit=1)
def slow(order_id: int) -> None:
    """Run until the soft limit."""
    try:
        time.sleep(60)
    except SoftTimeLimitExceeded:
        note("warned", order_id)
        raise


@app.task(soft_time_limit=1)
async def slow_on_a_loop(order_id: int) -> None:
    """Run until the soft limit, as a coroutine."""
    try:
        await asyncio.sleep(60)
    except SoftTimeLimitExceeded:
        note("warned", order_id)
        raise


@app.task(unique_on=["order_id"], raise_on_duplicate=True)
def unique(order_id: int, attempt: int = 0) -> int:
    """Refuse to be queued twice."""
    note("began", order_id)
    wait_for_gate()
    return attempt


@app.task(keys=["order_id"], graceful=True)
def graceful(order_id: int, attempt: int = 0) -> int:
    """Refuse to be queued twice, without an error."""
    note("began", order_id)
    wait_for_gate()
    return attempt


@app.task(bind=True)
def retries_and_returns(self, order_id: int) -> str:
    """Ask for a retry, then return normally."""
    note("tried", order_id)
    if self.request.retries == 0:
        self.retry(countdown=0, throw=False)
        return "for now"
    return "at last"


@app.task(crash_limit=1_000)
def pay(order_id: int, port: int) -> int:
    """Have an effect that another process counts."""
    tell(port, "began", order_id)
    time.sleep(0.2)
    tell(port, "ended", order_id)
    return order_id


@app.task(bind=True, autoretry_for=(ConnectionError,), max_retries=2, default_retry_delay=0)
def moody(self, order_id: int) -> int:
    """Fail once, and leave the retry to Celery."""
    if self.request.retries == 0:
        raise ConnectionError("away")
    note("calmed", order_id)
    return order_id


@app.task
def add(numbers: list[int], more: int = 0) -> int:
    """Add numbers at the end of a chord or in a link of a chain."""
    note("added", more)
    return sum(numbers) + more

"""Job functions that report to a counter, run by real RQ workers.

The addresses of their guard and counter come from the environment, as in any deployment.
"""

import os
import time
from pathlib import Path

import rq

from duly.guard import Guard
from duly.integrations.rq import idempotent
from tests.integrations.counter import tell

LEASE = 1.5

guard = Guard(os.environ["SHOP_GUARD"], lease=LEASE)


def say(what: str, subject: object) -> None:
    """Have an effect that another process counts."""
    tell(int(os.environ["SHOP_COUNTER"]), what, subject)


@idempotent(guard)
def charge(order_id: int, currency: str = "EUR") -> dict:
    """Have an effect that must not happen twice."""
    say("charged", order_id)
    return {"order": order_id, "currency": currency}


@idempotent(guard)
def linger(order_id: int) -> int:
    """Wait at the gate, and report the process that ran."""
    say("began", order_id)
    while not Path(os.environ["SHOP_GATE"]).exists():
        time.sleep(0.02)
    say("ended", order_id)
    return os.getpid()


@idempotent(guard)
async def greet(name: str) -> str:
    """Run on an event loop."""
    say("greeted", name)
    return f"hello {name}"


@idempotent(guard)
def flaky(order_id: int, failures: int) -> int:
    """Fail a few times."""
    say("tried", order_id)
    if rq.get_current_job().retries_left > 3 - failures:
        raise ConnectionError("away")
    return order_id


@idempotent(guard)
def asks_again(order_id: int) -> int | rq.Retry:
    """Ask RQ for two more tries."""
    say("tried", order_id)
    tries = rq.get_current_job().number_of_retries or 0
    return rq.Retry(max=2) if tries < 2 else order_id


def outer(order_id: int) -> str:
    """Call a guarded function from the job of another function."""
    try:
        return str(linger(order_id))
    except Exception as error:  # noqa: BLE001 - the test checks the type
        return type(error).__name__


@idempotent(guard)
def pay(order_id: int) -> int:
    """Have an effect."""
    say("began", order_id)
    time.sleep(0.2)
    say("ended", order_id)
    return order_id

"""Actors that report to a counter, run by real Dramatiq workers over a real Redis.

The addresses of their broker, guard and counter come from the environment, as in any deployment.
"""

import os
import signal
import time
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AsyncIO
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from duly.guard import Guard
from duly.integrations.dramatiq import IdempotentMiddleware
from tests.integrations.counter import tell

LEASE = 1.5

guard = Guard(os.environ["SHOP_GUARD"], lease=LEASE)
# Redeliver the messages that a killed worker had fetched soon instead of after a minute.
broker = RedisBroker(
    url=os.environ["SHOP_BROKER"], heartbeat_timeout=2_000, maintenance_chance=100_000
)
results = RedisBackend(client=broker.client)
broker.add_middleware(Results(backend=results, store_results=True))
broker.add_middleware(AsyncIO())
broker.add_middleware(IdempotentMiddleware(guard))
dramatiq.set_broker(broker)


def say(what: str, subject: object) -> None:
    """Have an effect that another process counts."""
    tell(int(os.environ["SHOP_COUNTER"]), what, subject)


@dramatiq.actor(idempotent=True)
def charge(order_id: int, currency: str = "EUR") -> dict:
    """Have an effect that must not happen twice."""
    say("charged", order_id)
    return {"order": order_id, "currency": currency}


@dramatiq.actor(idempotent=True, max_retries=0)
def linger(order_id: int) -> int:
    """Wait at the gate, and report the process that ran."""
    say("began", order_id)
    while not Path(os.environ["SHOP_GATE"]).exists():
        time.sleep(0.02)
    say("ended", order_id)
    return os.getpid()


@dramatiq.actor(idempotent=True)
async def greet(name: str) -> str:
    """Run on an event loop."""
    say("greeted", name)
    return f"hello {name}"


@dramatiq.actor(
    idempotent=True,
    idempotent_key=lambda order_id, *_: str(order_id),
    max_retries=3,
    min_backoff=50,
    max_backoff=100,
)
def flaky(order_id: int, failures: int) -> int:
    """Fail a few times."""
    say("tried", order_id)
    tries = Path(f"{os.environ['SHOP_GATE']}-{order_id}")
    with tries.open("a") as notes:
        notes.write("x")
    if len(tries.read_text()) <= failures:
        raise ConnectionError("away")
    return order_id


@dramatiq.actor(idempotent=True, crash_limit=2)
def deadly(order_id: int) -> None:
    """Kill its own process."""
    say("tried", order_id)
    os.kill(os.getpid(), signal.SIGKILL)


@dramatiq.actor
def outer(order_id: int) -> dict:
    """Call a guarded actor's function from the message of another actor."""
    return charge(order_id)


@dramatiq.actor(idempotent=True, crash_limit=1_000)
def pay(order_id: int) -> int:
    """Have an effect."""
    say("began", order_id)
    time.sleep(0.2)
    say("ended", order_id)
    return order_id

"""An application whose runs a fleet of RQ workers carries.

Where things are comes from the environment, as in any deployment.
"""

import os
import time
from pathlib import Path

import redis
import rq

from duly import Duly, Retry, current
from duly.integrations.rq import RQCarrier
from tests.integrations.counter import tell

broker = redis.Redis.from_url(os.environ["SHOP_BROKER"])
app = Duly(os.environ["SHOP_STORE"])
carrier = RQCarrier(
    rq.Queue("shop", connection=broker),
    app="tests.integrations.rq.carried:app",
    lease=2.0,
    beat=0.5,
)


@app.task(carrier=carrier)
def pay(order_id: int, port: int) -> int:
    """Have an effect that another process counts."""
    tell(port, "began", order_id)
    time.sleep(0.2)
    tell(port, "ended", order_id)
    return order_id


@app.task(carrier=carrier)
async def greet(name: str) -> str:
    """Run on the loop of whoever carries it."""
    return f"hello {name}, from {'rq' if 'RQ_JOB_ID' in os.environ else 'elsewhere'}"


@app.task(carrier=carrier, retries=Retry(2, base=0.05, jitter=False))
def flaky(port: int) -> int:
    """Fail twice."""
    tell(port, "tried", current().run_id)
    if current().attempt < 3:
        raise ConnectionError("away")
    return current().attempt


@app.task(carrier=carrier)
def broken() -> None:
    """Fail for good."""
    raise ValueError("no such order")


@app.task(carrier=carrier)
def linger(order_id: int, port: int, gate: str) -> int:
    """Take long; say who did it."""
    tell(port, "began", order_id)
    while not Path(gate).exists():
        time.sleep(0.02)
    tell(port, "ended", order_id)
    return os.getpid()


@app.task(carrier=carrier, on_crash="hold")
def once(order_id: int, port: int, gate: str) -> None:
    """Must not begin twice."""
    tell(port, "began", order_id)
    while not Path(gate).exists():
        time.sleep(0.02)


@app.task
def ours(order_id: int) -> int:
    """Is carried by nobody."""
    return order_id

"""An application whose runs a fleet of RQ workers carries.

Addresses come from the environment, as in any deployment.
"""

import os

import redis
import rq

from duly import Duly
from duly.integrations.rq import RQCarrier
from tests.integrations.carried_tasks import define

broker = redis.Redis.from_url(os.environ["SHOP_BROKER"])
app = Duly(os.environ["SHOP_STORE"])
carrier = RQCarrier(
    rq.Queue("shop", connection=broker),
    app="tests.integrations.rq.carried:app",
    lease=2.0,
    beat=0.5,
)

_shared = define(app, carrier)
pay, flaky, broken = _shared.pay, _shared.flaky, _shared.broken
once, ours, linger = _shared.once, _shared.ours, _shared.linger


@app.task(carrier=carrier)
async def greet(name: str) -> str:
    """Run on the event loop of the process that carries the run."""
    return f"hello {name}, from {'rq' if 'RQ_JOB_ID' in os.environ else 'elsewhere'}"

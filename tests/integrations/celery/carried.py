"""An application whose runs a fleet of Celery workers carries.

Addresses come from the environment, as in any deployment.
"""

import os
import time
from contextlib import suppress

import celery
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from duly import Duly
from duly.integrations.celery import CeleryCarrier
from tests.integrations.carried_tasks import define

fleet = Celery("fleet", broker=os.environ["SHOP_BROKER"])
fleet.conf.update(
    broker_transport_options={
        "visibility_timeout": 3,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 3,
    },
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    task_soft_time_limit=int(os.environ.get("SHOP_SOFT_LIMIT", "0")) or None,
    task_time_limit=int(os.environ.get("SHOP_HARD_LIMIT", "0")) or None,
)
app = Duly(os.environ["SHOP_STORE"])
carrier = CeleryCarrier(fleet, queue="fleet", lease=2.0, beat=0.5)

_shared = define(app, carrier)
pay, flaky, broken = _shared.pay, _shared.flaky, _shared.broken
once, ours, linger = _shared.once, _shared.ours, _shared.linger


@app.task(carrier=carrier)
async def greet(name: str) -> str:
    """Run on the event loop of the process that carries the run."""
    return f"hello {name}, from {'celery' if celery.current_app.main == 'fleet' else 'elsewhere'}"


@fleet.task(name="limited")
def limited() -> None:
    """Run for as long as Celery allows its own tasks to run."""
    while True:
        with suppress(SoftTimeLimitExceeded):
            time.sleep(60)


@app.every(seconds=1, name="beat", carrier=carrier)
def beat() -> None:
    """Note that a schedule fired."""

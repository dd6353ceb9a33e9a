"""The example, with a lease that a test has the time to wait for and a gate that it can close."""

import time
from types import SimpleNamespace

from duly.guard import Guard
from duly.integrations.celery import use_guard
from examples import celery_webhook
from examples.celery_webhook import app

LEASE = 1.5

# Messages that a killed worker had fetched are delivered again soon. By default, kombu looks for
# them when a worker starts, where they may not be visible yet, and then every 100 seconds. If the
# killed worker was just looking, no other worker looks before its mutex has expired.
app.conf.update(
    broker_transport_options={
        "visibility_timeout": 3,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 3,
    },
    worker_prefetch_multiplier=1,
)
use_guard(app, Guard(lease=LEASE))


def sleep_while_closed(seconds: float) -> None:
    """Sleep, and then wait for as long as the test keeps the gate closed."""
    time.sleep(seconds)
    while (celery_webhook.FOLDER / "closed").exists():
        time.sleep(0.02)


celery_webhook.time = SimpleNamespace(sleep=sleep_while_closed)

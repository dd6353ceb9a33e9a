"""The example, with a lease that a test has the time to wait for and a gate that it can close."""

import time
from types import SimpleNamespace

from duly.guard import Guard
from duly.integrations.celery import use_guard
from examples import celery_webhook
from examples.celery_webhook import app

# The application has the article's settings. These change no more than how long a test waits until
# messages that a killed worker had fetched are delivered again and handled.
LEASE = 1.5  # Not 30 seconds, for which the key of a killed body is held.
app.conf.broker_transport_options = {
    # Not an hour, for which no other worker takes a message that was fetched.
    "visibility_timeout": 3,
    # A worker looks for such messages every second, not every 10 times 10 seconds.
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    # Not five minutes, for which no worker looks if one was killed while it looked.
    "unacked_mutex_expire": 3,
}
use_guard(app, Guard(lease=LEASE))


def sleep_while_closed(seconds: float) -> None:
    """Sleep, and then wait for as long as the test keeps the gate closed."""
    time.sleep(seconds)
    while (celery_webhook.FOLDER / "closed").exists():
        time.sleep(0.02)


celery_webhook.time = SimpleNamespace(sleep=sleep_while_closed)

"""The example, with a short lease and a gate that a test can close."""

import time
from types import SimpleNamespace

from duly.guard import Guard
from duly.integrations.celery import use_guard
from examples import celery_webhook
from examples.celery_webhook import app

# The application has the article's settings. These changes only shorten the time that a test waits
# until the messages of a killed worker are delivered again and handled.
LEASE = 1.5  # Instead of 30 seconds, for which the key of a killed task is held.
app.conf.broker_transport_options = {
    # Instead of an hour, for which no other worker takes a message that was fetched.
    "visibility_timeout": 3,
    # A worker looks for such messages every second instead of every 10 times 10 seconds.
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    # Instead of five minutes, for which no worker looks if one was killed while it looked.
    "unacked_mutex_expire": 3,
}
use_guard(app, Guard(lease=LEASE))


def sleep_while_closed(seconds: float) -> None:
    """Sleep, and then wait for as long as the test keeps the gate closed."""
    time.sleep(seconds)
    while (celery_webhook.FOLDER / "closed").exists():
        time.sleep(0.02)


celery_webhook.time = SimpleNamespace(sleep=sleep_while_closed)

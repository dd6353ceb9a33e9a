"""The example, with a lease that a test has the time to wait for."""

from duly.guard import Guard
from duly.integrations.celery import use_guard
from examples.celery_webhook import app

LEASE = 1.5

use_guard(app, Guard(lease=LEASE))

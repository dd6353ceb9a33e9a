"""A Celery application with only its import changed: it names a broker and no ledger."""

import os
from pathlib import Path

from duly.integrations.celery import Celery

broker = os.environ["IMPORTED_BROKER"]
app = Celery("imported", broker=broker)
app.conf.update(
    result_backend=broker if broker.startswith("redis:") else "cache+memory://",
    broker_connection_retry_on_startup=True,
)


@app.task
def charge(order_id: int) -> int:
    """Note an effect that must not happen twice."""
    with Path(os.environ["IMPORTED_NOTES"]).open("a") as notes:
        notes.write(f"{order_id}\n")
    return order_id

"""A webhook that is handled once, even if it is delivered twice and processes are killed.

Start a Redis and a worker, `celery -A examples.celery_webhook worker -Q default`, and send one:
`python -m examples.celery_webhook`. Send it again: it is not handled again. What nobody could
handle is in `duly --app examples.celery_webhook:app dead list`.
"""

import os
import time
from pathlib import Path

from duly.integrations.celery import Celery, send_to_dlq

FOLDER = Path(os.environ.get("WEBHOOK_FOLDER", "webhooks"))

app = Celery("webhooks", broker=os.environ.get("WEBHOOK_BROKER", "redis://localhost:6379/0"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_serializer="json",
    broker_connection_retry_on_startup=True,
)


class TransientError(Exception):
    pass


class PermanentError(Exception):
    pass


def handle(payload: dict) -> None:
    """A stand-in for your application: it notes what it does, and knows a few customers."""
    note("began", payload)
    time.sleep(payload.get("seconds", 0))
    if (FOLDER / "outage").exists():
        raise TransientError("the bank is away")
    if not (FOLDER / "customers" / payload["customer"]).exists():
        raise PermanentError(f"there is no customer {payload['customer']}")
    note("handled", payload)


def note(what: str, payload: dict) -> None:
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "notes").open("a") as file:
        file.write(f"{what} {payload['id']} {os.getpid()}\n")


@app.task(
    bind=True,
    max_retries=3,
    default_retry_delay=60,
    queue="default",
)
def process_webhook(self, payload: dict):
    try:
        handle(payload)
    except TransientError as e:
        raise self.retry(exc=e, countdown=2**self.request.retries)
    except PermanentError:
        # don't retry — send to DLQ manually
        send_to_dlq(payload)


if __name__ == "__main__":
    (FOLDER / "customers").mkdir(parents=True, exist_ok=True)
    (FOLDER / "customers" / "ann").touch()
    sent = process_webhook.delay({"id": "evt_1", "customer": "ann"})
    print(f"sent as {sent.id}; see {FOLDER / 'notes'}")

"""A carrier for a queue of files: workers of that queue run tasks of duly.

`python -m examples.folder_queue FOLDER` enqueues three runs and acts as the queue's only worker
until they have ended. Its database is the one that DULY_URL names.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from duly import Duly
from duly.extend import (
    Carrier,
    CarrierMessage,
    CarrierSendFailed,
    CarrierWorker,
    ResendPolicy,
    on_attempt_end,
)


class FolderQueue:
    """The other system: a message is a file, and the first worker to rename it gets it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(exist_ok=True)

    def put(self, name: str, text: str) -> None:
        # A worker sees only whole files.
        part = self._folder / f"{name}.part"
        part.write_text(text)
        part.rename(self._folder / f"{name}.message")

    def take(self) -> str | None:
        for file in sorted(self._folder.glob("*.message")):
            taken = file.with_suffix(".taken")
            try:
                file.rename(taken)
            except FileNotFoundError:
                continue  # Another worker has it.
            text = taken.read_text()
            taken.unlink()
            return text
        return None


class FolderCarrier:
    def __init__(self, queue: FolderQueue, **settings: float) -> None:
        self._queue = queue
        self._worker = CarrierWorker(**settings)
        # A message may be lost with its file. It is sent again after 30, 60, 120, … seconds.
        self.resend_policy = ResendPolicy(first_resend_after=30, max_sends=10)

    def attach(self, app: Duly) -> None:
        self._worker.attach(app)

    def send(self, messages: Sequence[CarrierMessage]) -> None:
        failed: dict[str, Exception] = {}
        for message in messages:
            text = json.dumps([message.run_id, message.claim_number, message.task])
            try:
                self._queue.put(f"{message.run_id}-{message.claim_number}", text)
            except OSError as error:
                failed[message.run_id] = error
        if failed:
            raise CarrierSendFailed(failed)

    # -- in a worker process of the queue --

    def start(self) -> None:
        # It also sends queued runs, so no other process of duly is needed.
        self._worker.start(concurrency=1)

    def work(self) -> bool:
        """Handle one message. Return False if there is none."""
        text = self._queue.take()
        if text is None:
            return False
        run_id, claim_number, task = json.loads(text)
        self._worker.run(run_id, claim_number, task)
        return True

    def stop(self) -> None:
        self._worker.stop()


FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "messages")
fleet = FolderCarrier(FolderQueue(FOLDER))
carrier: Carrier = fleet  # A type checker compares the class with the interface.
app = Duly()


@app.task(carrier=carrier, retries=2)
def ship(order: int) -> str:
    return f"order {order} is on its way"


if __name__ == "__main__":
    on_attempt_end(app, lambda ended: print(ended.task, ended.outcome, ended.state))
    runs = [ship.enqueue(order) for order in (1, 2, 3)]
    fleet.start()
    while not all(run.refresh().is_final for run in runs):
        if not fleet.work():
            time.sleep(0.05)
    fleet.stop()
    for run in runs:
        print(run.result())
    app.close()

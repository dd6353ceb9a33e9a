"""What tests of workers wait for."""

from duly import Duly
from duly.runtime.embedded import EmbeddedWorker
from duly.runtime.recovery import recover_worker
from duly.store.opening import runtime_folder
from tests.servers.processes import wait_until


def wait_until_empty(worker: EmbeddedWorker) -> None:
    """Wait until every body has ended and its end is recorded or dropped."""
    inner = worker._worker
    assert inner is not None
    wait_until(inner.hand.is_empty, seconds=20, what="the bodies have ended")


def take_over(app: Duly, worker: EmbeddedWorker, run_id: str) -> None:
    """Declare a worker dead that does not know it yet: its next beat is far away."""
    wait_until(
        lambda: worker._keepalive.beats_succeeded_since is not None,
        seconds=20,
        what="the first beat",
    )
    holder = app.runs.get(run_id).record.worker_id
    assert holder is not None
    recover_worker(app.store, app.bus, holder, runtime_folder(app.store))

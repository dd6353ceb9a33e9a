"""What tests of workers wait for."""

import pytest

from duly import Duly
from duly.clock import monotonic
from duly.store.store_factory import runtime_folder
from duly.worker.embedded_worker import EmbeddedWorker
from duly.worker.services import maintenance
from duly.worker.services.recovery import recover_worker
from tests.servers.processes import wait_until


def wait_until_empty(worker: EmbeddedWorker) -> None:
    """Wait until every body has ended and its end is recorded or dropped."""
    inner = worker._worker
    assert inner is not None
    wait_until(inner.inflight.is_empty, seconds=20, what="the bodies have ended")


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


@pytest.fixture
def never_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers that hear hints find runs by these alone."""
    monkeypatch.setattr(maintenance, "_IDLE_PAUSE", 3600.0)


def wait_until_it_only_listens(worker: EmbeddedWorker) -> None:
    """Wait until a worker that never polls has looked at its store for the last time by itself."""
    inner = worker._worker
    assert inner is not None
    loops = {inner._claims: inner._claimer, inner._upkeep: inner._promoter}

    def is_at_rest() -> bool:
        if not inner._store.hears_hints():
            return False
        later = monotonic() + 60
        return all(
            loop._due[id(service)] > later and id(service) not in loop._hurried
            for loop, service in loops.items()
        )

    wait_until(is_at_rest, seconds=20, what="it only listens")

"""`duly worker --drain`: a worker process ends when nothing is left for it."""

from types import SimpleNamespace

import pytest

from duly.events import EventBus
from duly.settings import WorkerSettings
from duly.worker.worker_main import _WorkerMonitor
from tests.servers.processes import wait_until


class Signals:
    """No signal ever comes; says how long was waited for one."""

    def __init__(self) -> None:
        self.waited = 0.0

    def wait(self, seconds: float) -> bool:
        self.waited += seconds
        return False


@pytest.fixture
def worker():
    """A worker without work on an empty store."""
    return SimpleNamespace(
        write_monitor=SimpleNamespace(gave_up=False),
        threads=SimpleNamespace(
            look=lambda **_: False, has_lost_one=lambda: False, has_stalled=False
        ),
        inflight=SimpleNamespace(is_empty=lambda: True, started=list),
        has_spent_its_tasks=lambda: False,
        is_idle=lambda: True,
        has_drained=lambda **_: True,
        stop_claiming=lambda: None,
    )


def monitor_of(worker, signals):
    slots = SimpleNamespace(attended_at=float("inf"))
    return _WorkerMonitor(worker, slots, WorkerSettings(), signals, EventBus(), drain=True)


def test_a_worker_that_drains_ends_at_once_when_nothing_is_left(worker):
    signals = Signals()

    monitor_of(worker, signals).run()

    assert signals.waited < 0.5


def test_a_worker_that_drains_stays_while_it_is_busy(worker):
    signals, looks = Signals(), iter([False] * 20)
    worker.is_idle = lambda: next(looks, True)

    monitor_of(worker, signals).run()

    assert next(looks, None) is None


@pytest.mark.surface
def test_a_run_that_is_due_soon_is_left_to_do(app):
    @app.task(name="later")
    def later() -> None: ...

    later.using(delay=60).enqueue()
    with app.worker() as embedded:
        worker = embedded._worker
        wait_until(worker.has_drained, seconds=20, what="nothing is due now")

        assert not worker.has_drained(soon=120)

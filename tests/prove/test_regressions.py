"""Bugs that proving found in the engine, each in its smallest form."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duly import Duly
from duly.clock import monotonic, new_id
from duly.core.record import Claim
from duly.events import EventBus
from duly.store.heartbeats import HeartbeatReading
from duly.store.ops.recovery import Recover
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.ops.upkeep import RegisterWorker
from duly.store.sqlite.heartbeats import heartbeat_file_path
from duly.worker import inflight as hand_module
from duly.worker.inflight import InFlightClaims
from duly.worker.services.recovery import Recoverer
from duly.worker.start_marks import StartMarks, start_marks_path

LEASE = 0.05


class Between:
    """A store that runs a function right before the recovery of a worker."""

    def __init__(self, store: Any, happening: Callable[[], None], counters: dict[str, int]) -> None:
        self._store = store
        self._happening = happening
        self._counters = counters

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def apply(self, ops):
        if any(isinstance(op, Recover) for op in ops):
            self._happening()
        return self._store.apply(ops)

    def do(self, op):
        return self.apply([op])[0]

    def heartbeats(self):
        return Frozen(self._store.heartbeats(), self._counters)


class Frozen:
    """Heartbeats whose counters do not change."""

    def __init__(self, pulse: Any, counters: dict[str, int]) -> None:
        self._pulse = pulse
        self._counters = counters

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pulse, name)

    def read(self) -> dict[str, HeartbeatReading]:
        return {key: HeartbeatReading(beats, lease=LEASE) for key, beats in self._counters.items()}


@pytest.fixture
def app(store_url):
    """An application with one task that may run at most once."""
    app = Duly(store_url)

    @app.task(name="hold", on_crash="hold")
    def hold() -> None: ...

    app.hold = hold
    yield app
    app.close()


def test_a_worker_that_wakes_up_is_not_recovered_while_its_beats_count(app, tmp_path):
    worker_id = new_id()
    _show_that_it_lives(app.store, worker_id)
    app.store.do(RegisterWorker(worker_id, "host", os.getpid(), LEASE, "[]", '["hold"]'))
    assert app.store.heartbeats().beat([worker_id]) == {worker_id}
    run = app.hold.enqueue()
    slots = StartMarks(start_marks_path(tmp_path, worker_id), create=1)
    acknowledged = []

    def wake_up() -> None:
        # The supervisor beats for the worker and the claim succeeds. A valid beat permits a start.
        acknowledged.append(worker_id in app.store.heartbeats().beat([worker_id]))
        wants = ClaimRuns(worker_id, (Want(None, "thread-hold", 1),), ("hold",))
        for claim in app.store.do(wants):
            if acknowledged[-1]:
                slots.start(0, claim.run_id, claim.claim_number, float("inf"), -1.0)

    store = Between(app.store, wake_up, {worker_id: 1})
    recoverer = Recoverer(
        store,
        EventBus(),
        tmp_path,
        own_ids=frozenset,
        beats_since=lambda: 0.0,
        lease=LEASE,
        beat=0.1,
    )
    deadline = monotonic() + 10
    while not acknowledged and monotonic() < deadline:
        recoverer.tick()

    assert acknowledged
    may_have_started = [mark.run_id for mark in slots.marks()]
    assert not (run.id in may_have_started and run.refresh().state == "queued")
    slots.close()


def test_a_body_that_is_marked_after_the_deadline_does_not_begin(tmp_path: Path, monkeypatch):
    slots = StartMarks(tmp_path / "worker.slots", create=1)
    claims = InFlightClaims(slots, {"loop": 1, "thread": 1}, 1)
    slots.deadline = 10.0
    definition = _definition()
    (held,) = claims.take([(_claim(), definition)])
    # The worker freezes before the mark. Until then it was in time.
    monkeypatch.setattr(hand_module, "monotonic", lambda: 99.0 if list(slots.marks()) else 9.9)

    begun = claims.begin(held)

    assert not begun
    assert list(slots.marks()) == []
    assert claims.withdraw(lambda _held: True) == [held]


def _show_that_it_lives(store: Any, worker_id: str) -> None:
    """Workers on SQLite beat in a file, which this process must not lock as its own."""
    folder = getattr(store, "folder", None)
    if folder is not None:
        folder.mkdir(exist_ok=True)
        heartbeat_file_path(folder, worker_id).touch()


def _definition() -> Any:
    app = Duly("sqlite:///unused.db")

    @app.task(name="task")
    def task() -> None: ...

    return task.definition


def _claim() -> Claim:
    arguments = json.dumps({})
    return Claim(new_id(), 1, "task", "default", "thread", 0, 0, 1, 0, 0, 1, False, None, arguments)

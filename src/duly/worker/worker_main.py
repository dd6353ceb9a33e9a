"""What a worker process under a keeper does: it runs one worker, and watches.

Its main thread only watches: signals, the keeper's published deadline, and whether the keeper
still attends to it. A child whose keeper is frozen or gone ends itself, with all it started.
"""

import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from duly import faultpoints
from duly.clock import monotonic
from duly.errors import OUTAGES, AppNotFound, DulyError
from duly.events import EventBus, WorkerStopping
from duly.observe.log_setup import set_up_inherited_logging, write_failure
from duly.settings import WorkerSettings
from duly.worker.app_loader import explanation_of, import_modules, load
from duly.worker.garbage_collection import collect_less
from duly.worker.process_lifetime import die_with_parent
from duly.worker.signals import Signals
from duly.worker.start_marks import StartMarks
from duly.worker.watchdog import attach_to_watchdog
from duly.worker.worker import Worker
from duly.worker.worker_program import (
    CANNOT_START,
    DRAIN_LOOK_SECONDS,
    ENVIRONMENT,
    LOST_A_THREAD,
    NOT_FOUND,
    STARTED_BY,
    TRY_AGAIN,
    started_by,
)

_STOPPING_LOOK_SECONDS = 0.25
"""How often a worker that was asked to stop looks whether its last body has ended."""
_IDLE_SECONDS = 3.0
"""How long a worker that has one slot stays without a run before it ends."""


def main() -> None:
    """Run one worker until told to stop."""
    config = json.loads(os.environ.pop(ENVIRONMENT))
    _end_with_supervisor(config)
    set_up_inherited_logging()
    faultpoints.arm_from_environment()
    slots = StartMarks(Path(config["slots"]))
    slots.hold()
    settings = WorkerSettings(**config["settings"] | _tuples(config["settings"]))
    with _exit_if_refused():
        app = load(config["app"])
        import_modules(settings.include)
        app.use_url(config["url"])
        store = app.keep_store()
        app.schedules.sync()
    worker = Worker(
        store,
        app.registry,
        settings,
        slots,
        app.bus,
        worker_id=config["worker_id"],
        takes_suspects=False,
        # The keeper beats for us; as long as its deadline for us holds, its beats succeed.
        beats_since=lambda: slots.beats_since,
    )
    signals = Signals()
    collect_less()
    app.bus.start_log(worker)
    try:
        with _exit_if_refused():
            worker.start()
        _WorkerMonitor(worker, slots, settings, signals, app.bus, drain=config["drain"]).run()
        worker.stop()
    finally:
        app.bus.stop_log(worker)


@contextlib.contextmanager
def _exit_if_refused() -> Iterator[None]:
    """If the worker cannot start, report the error and exit with a status for its supervisor."""
    try:
        yield
    except OUTAGES as error:
        write_failure(error, f"cannot start now: {error}")
        sys.exit(TRY_AGAIN)
    except DulyError as error:
        write_failure(error, explanation_of(error))
        sys.exit(NOT_FOUND if isinstance(error, AppNotFound) else CANNOT_START)


def _end_with_supervisor(config: dict[str, Any]) -> None:
    """See to it that this process, and whatever it starts, ends when its keeper does."""
    os.environ[STARTED_BY] = started_by(config["tree"], config["worker_id"])
    if config["watchdog"] is not None:
        # Not by the kernel's word to a parent's child as well: if this process ended first, its
        # group would not be killed.
        with contextlib.suppress(OSError):
            attach_to_watchdog(config["watchdog"])
            return
    die_with_parent(config["supervisor"])


class _WorkerMonitor:
    def __init__(
        self,
        worker: Worker,
        slots: StartMarks,
        settings: WorkerSettings,
        signals: Signals,
        bus: EventBus,
        *,
        drain: bool,
    ) -> None:
        self._worker = worker
        self._slots = slots
        self._settings = settings
        self._signals = signals
        self._bus = bus
        self._drain = drain
        self._look_seconds = settings.deadline_check_interval
        if drain:
            self._look_seconds = min(self._look_seconds, DRAIN_LOOK_SECONDS)
        self._busy_at = monotonic()

    def run(self) -> None:
        """Watch until the worker may end."""
        while True:
            asked = self._signals.wait(self._look_seconds)
            self.fence()
            if self._drain and not self._slots.drained_since:
                # The supervisor reads it in the marks, and ends all workers together.
                self._worker.has_drained()
            if self._worker.write_monitor.gave_up:
                # As at the end of the grace: the keeper settles what still runs.
                self._slots.give_up()
                self._worker.stop_claiming()
                return
            is_spent = self._worker.has_spent_its_tasks()
            if asked or is_spent or self._has_nothing_to_do():
                break
            if self._worker.threads.look(every=self._look_seconds):
                break
            if self._worker.threads.has_lost_one():
                # What it held is lost with this process, and another one takes its place.
                logging.getLogger("duly").error(
                    "a thread of this worker ended unexpectedly; the worker process restarts"
                )
                sys.exit(LOST_A_THREAD)
        self._worker.stop_claiming()
        until = monotonic() + self._settings.grace
        self._announce_wait()
        while not self._worker.inflight.is_empty() and monotonic() < until:
            # Whether a second signal means "at once" is the keeper's to decide: whoever signals all
            # processes of a service has it pass on here what has come here already.
            self._signals.wait(_STOPPING_LOOK_SECONDS if len(self._worker.inflight) else 0.0)
            self.fence()
        # What still runs is the keeper's to settle, once this process is gone.
        if self._worker.threads.has_stalled:
            sys.exit(LOST_A_THREAD)

    def _announce_wait(self) -> None:
        claims = [held.claim for held in self._worker.inflight.started() if not held.ended]
        if claims:
            running = tuple((claim.task, claim.run_id) for claim in claims)
            grace = self._settings.grace
            self._bus.emit(WorkerStopping(self._worker.worker_id, running, grace))

    def fence(self) -> None:
        """End everything here if this worker was declared dead or nobody attends to it."""
        now = monotonic()
        unattended = now - self._slots.attended_at
        frozen = unattended > self._settings.lease - self._settings.margin
        if frozen and now >= self._slots.deadline:
            os.killpg(0, signal.SIGKILL)

    def _has_nothing_to_do(self) -> bool:
        """Return whether a worker with one slot should end because there is no work for it."""
        if not self._settings.one_slot:
            return False
        if not self._worker.is_idle():
            self._busy_at = monotonic()
        # It serves only suspects, and the supervisor looks for those.
        return monotonic() - self._busy_at > _IDLE_SECONDS


def _tuples(settings: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the settings that JSON has as lists."""
    return {
        "queues": tuple((name, limit) for name, limit in settings["queues"]),
        "exclude_queues": tuple(settings["exclude_queues"]),
        "include": tuple(settings["include"]),
    }

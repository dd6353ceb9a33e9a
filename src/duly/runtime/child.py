"""The worker process under a keeper: `python -m duly.runtime.child`, started by exec.

Its main thread only watches: signals, the keeper's published deadline, and whether the keeper
still attends to it. A child whose keeper is frozen or gone ends itself, with all it started.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from duly import faultpoints
from duly.clock import monotonic
from duly.errors import OUTAGES, AppNotFound, DulyError
from duly.observe.writing import set_up_inherited_logging, tell_failure
from duly.runtime.dying import die_with_parent
from duly.runtime.loading import explained, load
from duly.runtime.slots import Slots
from duly.runtime.tether import tie
from duly.runtime.worker import Worker
from duly.settings import WorkerSettings

ENVIRONMENT = "DULY_CHILD"
_NOT_FOUND = 64
_CANNOT_START = 78
CANNOT_LOAD = {_NOT_FOUND: 2, _CANNOT_START: 1}
"""The exit statuses (EX_USAGE, EX_CONFIG) that tell the keeper that trying again is useless, each
with its own status then: a usage error, or a failure."""
TRY_AGAIN = 75
"""The exit status (EX_TEMPFAIL) of a child that met an outage; the keeper starts another."""

_STOPPING_LOOK_SECONDS = 0.25
"""How often a worker that was asked to stop looks whether its last body has ended."""
_IDLE_SECONDS = 3.0
_YOUNG_OBJECTS = 10_000
"""So many may gather before the garbage collector looks at them. A batch of claims is some 3,000
on its way through, which go with it and are no garbage: by default the collector would look at
them twice per batch, in vain."""


def main() -> None:
    """Run one worker until told to stop."""
    config = json.loads(os.environ.pop(ENVIRONMENT))
    die_with_parent(config["keeper"])
    if config["tether"] is not None:
        with contextlib.suppress(OSError):  # Then its main thread alone watches.
            tie(config["tether"])
    set_up_inherited_logging()
    faultpoints.arm_from_environment()
    slots = Slots(Path(config["slots"]))
    settings = WorkerSettings(**config["settings"] | {"queues": _queues(config["settings"])})
    usual = gc.get_threshold()
    try:
        app = load(config["app"])
        app.use_url(config["url"])
        store = app.store
        app.schedules.sync()
    except OUTAGES as error:
        tell_failure(error, f"cannot start now: {error}")
        sys.exit(TRY_AGAIN)
    except DulyError as error:
        tell_failure(error, explained(error))
        sys.exit(_NOT_FOUND if isinstance(error, AppNotFound) else _CANNOT_START)
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
    # All that was loaded stays: the garbage collector need not look at it over and over.
    gc.freeze()
    collect_less(usual)
    worker.start()
    _Watch(worker, slots, settings, signals, drain=config["drain"]).run()
    worker.stop()
    # Interpreter shutdown would wait for threads that user code may have left behind.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def collect_less(usual: tuple[int, int, int]) -> None:
    """Let the garbage collector wait for more; one that the application has set stays as it is."""
    if gc.get_threshold() == usual:
        gc.set_threshold(_YOUNG_OBJECTS, *usual[1:])


class _Watch:
    def __init__(
        self,
        worker: Worker,
        slots: Slots,
        settings: WorkerSettings,
        signals: "Signals",
        *,
        drain: bool,
    ) -> None:
        self._worker = worker
        self._slots = slots
        self._settings = settings
        self._signals = signals
        self._ends_when_idle = drain or settings.one_slot
        self._busy_at = monotonic()

    def run(self) -> None:
        """Watch until the worker may end."""
        while True:
            asked = self._signals.wait(self._settings.look)
            self.fence()
            if asked or self._is_idle_long_enough():
                break
        self._worker.stop_claiming()
        until = monotonic() + self._settings.grace
        while not self._worker.hand.is_empty() and monotonic() < until:
            # Whether a second signal means "at once" is the keeper's to decide: whoever signals all
            # processes of a service has it pass on here what has come here already.
            self._signals.wait(_STOPPING_LOOK_SECONDS if len(self._worker.hand) else 0.0)
            self.fence()
        # What still runs is the keeper's to settle, once this process is gone.

    def fence(self) -> None:
        """End everything here if this worker was declared dead or nobody attends to it."""
        now = monotonic()
        unattended = now - self._slots.attended_at
        frozen = unattended > self._settings.lease - self._settings.margin
        if frozen and now >= self._slots.deadline:
            os.killpg(0, signal.SIGKILL)

    def _is_idle_long_enough(self) -> bool:
        if not self._ends_when_idle:
            return False
        if not self._worker.is_idle():
            self._busy_at = monotonic()
        if monotonic() - self._busy_at <= _IDLE_SECONDS:
            return False
        # A one-slot child serves suspects alone, and others look for those.
        return self._settings.one_slot or self._worker.has_drained()


class Signals:
    """SIGTERM, SIGINT and SIGCONT as something the main thread can wait for."""

    def __init__(self) -> None:
        self._asked = 0
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)  # noqa: FBT003 - the standard library's
        self._writer.setblocking(False)  # noqa: FBT003 - the standard library's
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        # Only to wake up at once after a freeze, and look at the deadline first.
        signal.signal(signal.SIGCONT, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def wait(self, seconds: float) -> bool:
        """Wait for a signal; say whether one asked to stop since the last call."""
        select.select([self._reader], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)
        asked, self._asked = self._asked, 0
        return bool(asked)

    def _ask(self, *_: object) -> None:
        self._asked += 1


def _queues(settings: dict[str, Any]) -> tuple[tuple[str, int | None], ...]:
    return tuple((name, limit) for name, limit in settings["queues"])


if __name__ == "__main__":
    main()

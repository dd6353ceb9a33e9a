"""`duly worker`: a process that keeps worker processes and runs no user code itself.

It beats for its children, sees a death at once by waitpid, kills whatever that child started and
left running, and only then settles what the child held.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from duly.clock import monotonic, new_id
from duly.errors import StoreRefused
from duly.events import EngineFailed, EventBus
from duly.heartbeat import HeartbeatThread
from duly.limits import SUSPECT_CHILDREN
from duly.settings import WorkerSettings
from duly.store.protocol import Store
from duly.store.store_factory import open_store, runtime_folder
from duly.worker.app_probe import find_settings
from duly.worker.garbage_collection import collect_less
from duly.worker.restart_backoff import RestartBackoff
from duly.worker.service_loop import Service, ServiceLoop
from duly.worker.shutdown import Shutdown
from duly.worker.signals import Signals
from duly.worker.start_marks import StartMarks, start_marks_path
from duly.worker.supervisor_services import (
    SUSPECT_PAUSE,
    DeadChildRecovery,
    StartAnnouncement,
    SuspectMonitor,
)
from duly.worker.task_budget import TaskBudget
from duly.worker.watchdog import Watchdog
from duly.worker.worker_process import (
    ChildProcess,
    Start,
    SupervisedWorker,
    ask_to_stop,
    have_drained,
    kill_group,
    kill_leftover_processes,
    start_child,
)
from duly.worker.worker_program import CANNOT_LOAD, DRAIN_LOOK_SECONDS

_PATIENCE_SECONDS = 5.0
"""How long a body may stay past its timeout before its process is replaced."""
_ENDING_LOOK_SECONDS = 0.02


def run(
    app: str,
    url: str | None,
    settings: WorkerSettings,
    *,
    processes: int = 1,
    drain: bool = False,
    bus: EventBus | None = None,
    start: Start = start_child,
) -> int:
    """Keep `processes` worker processes running until a signal; return an exit status.

    Without a `url` the application's own store is used, by keeper and children alike.
    """
    if url is None:
        found = find_settings(app)
        if isinstance(found, int):
            return found
        url = found.url
    store = open_store(url)
    supervisor = Supervisor(
        store, app, url, settings, bus or EventBus(), processes=processes, drain=drain, start=start
    )
    return supervisor.run()


class Supervisor:
    """Supervises children; its threads are the keepalive and the service loop."""

    def __init__(
        self,
        store: Store,
        app: str,
        url: str,
        settings: WorkerSettings,
        bus: EventBus,
        *,
        processes: int,
        drain: bool,
        start: Start = start_child,
    ) -> None:
        self._store = store
        self._app = app
        self._url = url
        self._settings = settings
        self._processes = processes
        self._drain = drain
        self._start = start
        self._folder = runtime_folder(store)
        self._bus = bus
        self._lock = threading.Lock()
        self._children: dict[int, SupervisedWorker] = {}
        self._budget = TaskBudget(settings.max_tasks)
        self._id = new_id()
        self._watchdog = Watchdog(self._id)
        self._shutdown = Shutdown(bus, settings.grace)
        self._has_worked = False
        self._backoff = RestartBackoff()
        self._status = 0
        self._keepalive = HeartbeatThread(
            store.heartbeats(),
            self._members,
            self._disowned,
            lease=settings.lease,
            beat=settings.beat,
            margin=settings.margin,
        )
        self._keepalive.on_attempt = self._attend
        self._dead_children = DeadChildRecovery(store, self._bus, self._folder)
        self._suspects = SuspectMonitor(store, self._may_have_suspects)
        self._registered_id: str | None = None
        self._announcement = StartAnnouncement(
            store, bus, self._find_registered, app, settings, processes
        )
        services: list[Service] = [self._dead_children, self._suspects, self._announcement]
        self._services = ServiceLoop("duly-supervisor", services, self._bus)

    def run(self) -> int:
        """Supervise until everything has ended."""
        signals = Signals()
        collect_less()
        for missing in self._budget.missing(self._processes):
            self._spawn(missing, one_slot=False)
        self._keepalive.start()
        self._services.start()
        looked_at, look_seconds = monotonic(), self._settings.deadline_check_interval
        if self._drain:
            look_seconds = min(look_seconds, DRAIN_LOOK_SECONDS)
        try:
            while self._children or not self._shutdown.has_begun:
                # What the last child held is settled soon.
                is_ending = self._dead_children.pending and not self._children
                if signals.wait(_ENDING_LOOK_SECONDS if is_ending else look_seconds):
                    self._on_stop_signal(signals.last)
                now = monotonic()
                if now - looked_at > self._settings.lease - self._settings.margin:
                    self._kill_expired(now)
                looked_at = now
                self._attend_while_a_beat_is_stuck(now)
                self._reap()
                self._look_after(now)
        finally:
            self._end()
        return self._status

    # -- children --

    def _spawn(self, missing: int = 1, *, one_slot: bool) -> None:
        worker_id = new_id()
        settings = self._settings
        if one_slot:
            settings = replace(settings, one_slot=True, concurrency=1, async_limit=1)
        # Somebody may have removed the folder.
        path = start_marks_path(runtime_folder(self._store), worker_id)
        slots = StartMarks(path, create=settings.start_mark_count)
        slots.attended_at = monotonic()
        settings = replace(settings, max_tasks=self._budget.share(missing, one=one_slot))
        try:
            process = self._start_process(worker_id, settings, path)
        except OSError:
            self._budget.give_back(settings.max_tasks, 0)
            slots.remove()
            slots.close()
            raise
        with self._lock:
            self._children[process.pid] = SupervisedWorker(
                process, worker_id, slots, settings, one_slot, monotonic()
            )

    def _start_process(self, worker_id: str, settings: WorkerSettings, slots: Path) -> ChildProcess:
        end = self._watchdog_pipe()
        config = {
            "app": self._app,
            "url": self._url,
            "worker_id": worker_id,
            "tree": self._id,
            "slots": str(slots),
            "supervisor": os.getpid(),
            "watchdog": end,
            "settings": asdict(settings),
            "drain": self._drain,
        }
        return self._start(json.dumps(config), () if end is None else (end,))

    def _watchdog_pipe(self) -> int | None:
        """Return what a child is to be tied to."""
        with self._lock:
            if self._watchdog.renew():
                self._hold(monotonic())
            return self._watchdog.end

    def _reap(self) -> None:
        for pid, child in list(self._children.items()):
            found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if found == 0:
                if child.slots.is_deserted():
                    kill_group(child.process)  # A body has executed another program there.
                continue
            if os.WIFSTOPPED(status):
                child.frozen_since = monotonic()
            elif os.WIFCONTINUED(status):
                child.frozen_since = None
            else:
                self._on_child_exit(child, os.waitstatus_to_exitcode(status))

    def _on_child_exit(self, child: SupervisedWorker, status: int) -> None:
        """A child is gone: kill its group, then have its runs settled."""
        child.process.returncode = status
        kill_leftover_processes(child.process, child.worker_id)
        with self._lock:
            del self._children[child.process.pid]
        had_registered, gave_up = child.slots.registered, child.slots.gave_up
        self._budget.give_back(child.settings.max_tasks, child.slots.claimed)
        is_empty = not any(True for _ in child.slots.marks())
        child.slots.close()
        others = self._children.values()
        self._has_worked |= had_registered or any(other.slots.registered for other in others)
        if status in CANNOT_LOAD and not self._has_worked:
            # It has said why, and holds nothing. Once a child has worked, the code was replaced by
            # code that cannot be loaded: that may be mended, and other children may still work.
            start_marks_path(self._folder, child.worker_id).unlink(missing_ok=True)
            self._status = CANNOT_LOAD[status]
            self._shutdown.begin()
            self._stop_children()
            return
        is_ordered = gave_up or child.retired_at is not None or self._shutdown.has_begun
        # A body can end its process with status 0, too.
        is_idle = status == 0 and is_empty
        reason = self._shutdown.reason_of(child, status, is_idle=is_idle)
        self._dead_children.add(child.worker_id, reason, stopped=is_ordered or is_idle)
        self._services.hurry(self._dead_children)
        if had_registered:
            self._backoff.note_success()
            self._registered_id = child.worker_id
        else:
            self._backoff.note_failure()

    def _look_after(self, now: float) -> None:
        for child in list(self._children.values()):
            if child.frozen_since is not None:
                if now - child.frozen_since >= self._settings.lease:
                    kill_group(child.process)
            elif child.retired_at is not None:
                if self._shutdown.is_overdue(now, child.retired_at):
                    kill_group(child.process)
            elif child.is_overdue(now - _PATIENCE_SECONDS):
                self._retire(child)
        if self._shutdown.has_begun:
            if self._shutdown.is_overdue(now):
                self._kill_all()
            return
        if self._has_ended():
            self._stop_children()
            self._shutdown.begin_when_done(is_spent=not self._children)
            return
        try:
            self._refill(now)
        except (OSError, StoreRefused) as error:
            # There is no room on the disk, or for another process. That may pass.
            self._bus.emit(EngineFailed("start a worker process", repr(error)))
            self._backoff.note_failure()

    def _has_ended(self) -> bool:
        """Return whether no child may begin a task, or all found none and left nothing behind."""
        if not self._children:
            return self._budget.is_spent and not self._dead_children.pending
        is_complete = not (self._dead_children.pending or any(self._missing()))
        since = self._dead_children.recovered_at
        return self._drain and is_complete and have_drained(self._children.values(), since)

    def _may_have_suspects(self) -> bool:
        with self._lock:
            return not self._children or any(
                child.slots.saw_suspect for child in self._children.values()
            )

    def _refill(self, now: float) -> None:
        if not self._backoff.is_over(now):
            return
        working = [child for child in self._children.values() if child.retired_at is None]
        suspects = [child for child in working if child.one_slot]
        newest = max((child.started_at for child in suspects), default=0.0)
        if (
            self._suspects.waiting
            and not self._budget.is_spent
            and len(suspects) < SUSPECT_CHILDREN
            and now - newest >= SUSPECT_PAUSE
        ):
            self._spawn(one_slot=True)
        for missing in self._missing():
            self._spawn(missing, one_slot=False)

    def _missing(self) -> Iterator[int]:
        """Count down the processes to start."""
        working = [child for child in self._children.values() if child.retired_at is None]
        return self._budget.missing(self._processes - sum(not c.one_slot for c in working))

    @staticmethod
    def _retire(child: SupervisedWorker) -> None:
        """Replace a child: it finishes what it can within the grace, then it is killed."""
        child.retired_at = monotonic()
        ask_to_stop(child.process)

    def _kill_expired(self, now: float) -> None:
        """This very process was frozen: what its children hold may belong to others by now."""
        for child in list(self._children.values()):
            if child.slots.registered and now >= child.slots.deadline:
                kill_group(child.process)

    def _find_registered(self) -> str | None:
        """Return the id of a worker that has registered, if there is one."""
        with self._lock:
            found = (c.worker_id for c in self._children.values() if c.slots.registered)
            return next(found, self._registered_id)

    # -- liveness --

    def _members(self) -> Mapping[str, Callable[[float], None]]:
        with self._lock:
            registered = [c for c in self._children.values() if c.slots.needs_renewal]
            return {child.worker_id: partial(self._publish, child) for child in registered}

    def _publish(self, child: SupervisedWorker, deadline: float) -> None:
        with self._lock:
            # It may have ended and been buried while the beat was on its way.
            if self._children.get(child.process.pid) is child:
                child.slots.deadline = deadline

    def _attend(self, at: float, beats_since: float | None) -> None:
        with self._lock:
            for child in self._children.values():
                child.slots.attended_at = at
                child.slots.beats_since = beats_since
            self._hold(at)

    def _attend_while_a_beat_is_stuck(self, now: float) -> None:
        """Keep the children alive while the thread that beats is kept waiting.

        It may wait for a name server, say, for longer than any timeout of the store. As after a
        beat that failed, the children live on, and may begin and record nothing past their lease.
        """
        since = self._keepalive.trying_since
        if since is not None and now - since > self._settings.beat:
            is_failing = now - since > self._settings.lease / 2
            self._attend(now, None if is_failing else self._keepalive.beats_succeeded_since)

    def _hold(self, at: float) -> None:
        """Let the children live on, who were attended to then."""
        self._watchdog.extend_until(at + self._settings.lease - self._settings.margin)

    def _disowned(self, worker_id: str) -> None:
        """The store calls a child dead: end it, so that no second body of its runs lives on."""
        with self._lock:
            found = [c for c in self._children.values() if c.worker_id == worker_id]
        for child in found:
            kill_group(child.process)

    # -- stopping --

    def _on_stop_signal(self, number: int) -> None:
        if not self._shutdown.has_begun:
            self._stop_children()
            self._shutdown.begin_by_signal(number, self._children.values())
        else:
            self._shutdown.force()
            self._kill_all()

    def _stop_children(self) -> None:
        for child in self._children.values():
            ask_to_stop(child.process)

    def _kill_all(self) -> None:
        for child in self._children.values():
            kill_group(child.process)

    def _end(self) -> None:
        self._kill_all()
        while self._children:
            self._reap()
            threading.Event().wait(0.01)
        self._services.stop()
        self._announcement.finish()
        self._dead_children.finish()
        self._keepalive.stop()
        self._watchdog.close()
        self._store.close()

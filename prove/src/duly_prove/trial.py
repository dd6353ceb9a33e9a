"""One running scenario on one database: its trees, its work, its faults, and its history."""

import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Self

from duly.api.runs import Filter
from duly.clock import monotonic
from duly.core.schedule import first_instant, instants, read_rules, read_trigger
from duly.store.reads import ScheduleFilter
from duly_prove import workload
from duly_prove.database import Database
from duly_prove.faults import InjectedFault, is_gone
from duly_prove.feeder import RATE, Feeder, Mix, everything, waiting
from duly_prove.history import DueInstant, EnqueueRequest, Freeze, History, Transition
from duly_prove.observation_log import ObservationLog
from duly_prove.process_starter import InterpreterStarter, ProcessStarter
from duly_prove.process_tree import ProcessTree, TreeSettings, wait_for

ProgressReport = Callable[[str, int, int], None]
"""Receives the current activity, the number of finished items, and their total."""

START_SECONDS = 60.0
DRAIN_SECONDS = 90.0
STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.05


class Trial:
    """One scenario on one database: starts supervisors, feeds runs, and ends all its processes."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        seed: int,
        report_progress: ProgressReport = lambda _what, _done, _all: None,
        records_transitions: bool = True,
        rate: float = RATE,
        starter: ProcessStarter | None = None,
    ) -> None:
        self.url = url
        self.folder = folder
        self.seed = seed
        self.report_progress = report_progress
        self.starter = starter or InterpreterStarter()
        self._records_transitions = records_transitions
        self._rate = rate
        self.duration_factor = RATE / rate
        """The factor that makes tasks longer at a lower rate, so that equally many are running."""
        self.random = Random(seed)  # noqa: S311 - a seed must repeat what it chose
        self.app = workload.app
        self.app.use_url(url)
        self.database = Database()
        self.observations = ObservationLog(folder)
        self.settings = TreeSettings(url, folder)
        self.adapt: Callable[[TreeSettings], TreeSettings] = lambda settings: settings
        """Changes the settings of every tree that a scenario starts."""
        self.trees: list[ProcessTree] = []
        self.embedded: list[ProcessTree] = []
        """Programs with an embedded worker, which have neither a supervisor nor children."""
        self.faults: list[InjectedFault] = []
        self.freezes: list[Freeze] = []
        self.feeder = self._make_feeder(
            partial(everything, duration_factor=self.duration_factor), backlog=60
        )
        self.due: list[DueInstant] = []
        """The instants at which schedules had to fire, derived from the request."""
        self.crash_charges_allowed = True
        self.seconds_to_recover: float | None = None
        self._drain_seconds = 0.0
        self.retried = 0
        self.violations: list[str] = []
        """Violations that only the trial or its scenario can detect."""
        self.facts: dict[str, Any] = {}
        """Other measurements of the scenario."""

    def __enter__(self) -> Self:
        self.database.create_ledger()
        if self._records_transitions:
            self.database.record_transitions()
        return self

    def __exit__(self, *_: object) -> None:
        for tree in (*self.trees, *self.embedded):
            tree.end()
        self.app.close()

    # -- actions --

    def use_mix(self, mix: Mix, *, backlog: int) -> None:
        """Enqueue other calls than those of every kind."""
        self.feeder = self._make_feeder(mix, backlog=backlog)

    def start_tree(self, **changes: Any) -> ProcessTree:  # noqa: ANN401 - fields of TreeSettings
        """Start one more supervisor."""
        tree = ProcessTree(self.adapt(self.settings._replace(**changes)), self.starter)
        self.trees.append(tree)
        return tree

    def start_embedded(self) -> ProcessTree:
        """Start one more program with an embedded worker."""
        program = ProcessTree(
            self.settings._replace(program="duly_prove.embedded_program"), self.starter
        )
        self.embedded.append(program)
        return program

    def wait_until_working(self) -> None:
        """Wait until every tree has a worker that is ready to claim."""
        ready = wait_for(lambda: all(map(is_working, self.trees)), START_SECONDS, _LOOK_SECONDS)
        if not ready:
            said = "\n".join(self.trees[0].log.read_text().splitlines()[-20:])
            message = (
                f"no worker started within {START_SECONDS:.0f} s; the last output was:\n{said}"
            )
            raise TimeoutError(message)

    def replace(self, tree: ProcessTree) -> ProcessTree:
        """Replace a tree that has ended by a new one."""
        self.trees.remove(tree)
        new = ProcessTree(tree.settings, self.starter)
        self.trees.append(new)
        return new

    def expect_firings(self, schedule: str) -> None:
        """Record the instants at which a schedule with an end has to fire, since it was added.

        The stored next instant is not used: the schedule may have fired already.
        """
        (found,) = self.app.store.list_schedules(ScheduleFilter(schedule, removed=True))
        trigger, rules = read_trigger(found.trigger), read_rules(found.rules)
        begin, _ = first_instant(schedule, trigger, rules, found.created_at)
        due = () if begin is None else instants(trigger, rules, begin - 1)
        self.due += [DueInstant(schedule, found.version, instant) for instant in due]

    def wait_until_recovered(self, seconds: float = DRAIN_SECONDS) -> None:
        """Wait until nothing is left to do, and retry the runs that reached the crash limit.

        Each wait that takes longer than `seconds` is a violation.

        A run whose process was killed three times in a row must become a dead letter. It must
        exist, and must run when an operator retries it.
        """
        began_at = monotonic()
        self.drain(seconds)
        self.seconds_to_recover = monotonic() - began_at
        failed = Filter(state="failed")
        self.retried = self.app.dead.retry(which=failed, actor="prove", reason="killed").done
        if self.retried:
            self.drain(seconds)
        # A worker that died without a claim is declared dead no sooner than others.
        if not wait_for(lambda: not self._stale_live_workers(), seconds, _LOOK_SECONDS):
            self.violations += [
                f"I5 one holder: worker {worker_id} was still live after {seconds:g} s"
                for worker_id in self._stale_live_workers()
            ]

    def _stale_live_workers(self) -> list[str]:
        called_live = [
            (each, pid) for each, state, pid in self.database.workers() if state == "live"
        ]
        return [worker_id for worker_id, pid in called_live if is_gone(pid)]

    def stop_all(self) -> None:
        """Ask all supervisors and embedded programs to stop, and kill those that do not."""
        processes = [*self.trees, *self.embedded]
        for process in processes:
            process.signal_supervisor(signal.SIGTERM)
        statuses = [process.wait(STOP_SECONDS) for process in processes]
        self.facts["supervisors_stopped"] = statuses[: len(self.trees)]
        for process in processes:
            process.end()

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Wait until nothing is left to do. If that takes longer, it is a violation."""
        self._drain_seconds = seconds
        last = max(1, waiting(self.app))

        def is_drained() -> bool:
            left = waiting(self.app)
            self.report_progress("draining", max(0, last - left), last)
            return left == 0

        if not wait_for(is_drained, seconds, _LOOK_SECONDS):
            self.violations.append(
                f"I13 progress: {waiting(self.app)} runs had not ended after {seconds:g} s"
            )

    # -- history --

    def history(self) -> History:
        """Return everything that the checker needs."""
        self.report_progress("reading back", 0, 1)
        requests: list[EnqueueRequest] = [*self.feeder.requests, *self.observations.read_requests()]
        effects = [*self.database.rows(), *self.observations.read_effects()]
        left = waiting(self.app)
        transitions = self.database.transitions() if self._records_transitions else None
        return History(
            requests=requests,
            transitions=transitions,
            body_signals=self.observations.read_body_signals(),
            effects=effects,
            freezes=self.freezes,
            embedded=self._embedded_claims(transitions or ()),
            runs=self.database.runs(),
            attempts=self.database.attempts(),
            transactional=workload.TRANSACTIONAL,
            hold_tasks=workload.HELD,
            due=self.due,
            firings=self.database.firings(),
            scheduled_runs=self.database.scheduled_runs(),
            missing=self.feeder.missing,
            went_back=self.feeder.went_back,
            damage=self.database.damage(),
            workers_left_live=[
                worker_id for worker_id, state, _pid in self.database.workers() if state == "live"
            ],
            unfinished_after=self._drain_seconds if left else None,
            crash_charges_allowed=self.crash_charges_allowed,
        )

    def _embedded_claims(self, transitions: Sequence[Transition]) -> frozenset[tuple[str, int]]:
        """Return the claims of workers inside a program, whichever process ran their tasks."""
        pids = {program.pid for program in self.embedded}
        workers = {
            fields[0]
            for name, pid, _at, *fields in self.observations.read_events()
            if name == "WorkerStarted" and pid in pids
        }
        return frozenset(
            (transition.run_id, transition.claim_number)
            for transition in transitions
            if transition.kind == "claim" and transition.worker_id in workers
        )

    def kills_seen_by_supervisors(self) -> int:
        """Return how many deaths of workers by SIGKILL their supervisors saw with waitpid."""
        return sum(
            name == "WorkerEnded" and signal.SIGKILL.name in fields[1]
            for name, _pid, _at, *fields in self.observations.read_events()
        )

    def writes_refused(self) -> int:
        """Return how many late results the fence refused, as the workers recorded."""
        return sum(name == "ResultDropped" for name, *_ in self.observations.read_events())

    def _make_feeder(self, mix: Mix, *, backlog: int) -> Feeder:
        random = Random(self.random.random())  # noqa: S311 - as above
        return Feeder(self.app, mix, random, backlog=backlog, rate=self._rate)


def is_working(tree: ProcessTree) -> bool:
    """Return whether a tree has a worker that is ready to claim."""
    return any(child.is_registered for child in tree.children())

"""A shop under fault injection: workers are killed and frozen, and the orders are counted.

The counts come from the orders' effects, in a ledger separate from duly's tables: rows that
transactional tasks wrote, and lines that the other tasks added to a file.
"""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from duly.clock import monotonic
from duly.core.states import State
from duly.task import Call
from duly_prove import workload
from duly_prove.counts import document, sums
from duly_prove.faults import (
    ActiveFreeze,
    InjectedFault,
    choose_child,
    freeze,
    is_gone,
    kill_child,
    thaw,
)
from duly_prove.feeder import waiting
from duly_prove.history import Effect, RunAtEnd
from duly_prove.process_tree import ProcessTree, pause_for, wait_for
from duly_prove.trial import Trial, is_working

TREES = 3
PROCESSES = 2
CONCURRENCY = 2
LEASE_SECONDS = 2.0
BEAT_SECONDS = 0.5

_KINDS = ("transactional", "hold", "rerun")
_HOLD_SHARE, _RERUN_SHARE = 0.25, 0.15
_ENQUEUE_BATCH = 50
_WORKING_SHARE = 0.6
"""The share of time that the tasks would take without faults. Restarts take the rest."""
_LONGEST_BODY_MILLISECONDS = 2_000
_KILL_SECONDS = 1.0
_FREEZES_AT = (0.15, 0.45)
_FROZEN_SECONDS = LEASE_SECONDS * 1.7
_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.04


class DemoProgress(NamedTuple):
    """The progress of the demo."""

    what: str
    done: int
    total: int
    kills: int
    frozen: int
    """The number of processes that are frozen now."""


ProgressCallback = Callable[[DemoProgress], None]


class OrderCounts(NamedTuple):
    """The outcome of the orders of one kind, counted by their effects."""

    kind: str
    enqueued: int
    succeeded: int
    interrupted: int
    interrupted_with_effect: int
    """How many of the interrupted orders had their effect once."""
    dead: int
    lost: int
    duplicated: int
    again: int
    """Effects that were repeated after a crash, where the task allows that."""


class DemoResult(NamedTuple):
    """The result of the demo."""

    rows: tuple[OrderCounts, ...]
    kills: int
    freezes: int
    zombies: int
    """Frozen workers whose runs were taken over, and that recorded nothing about them."""
    taken_over: int
    """Runs that were taken over from frozen workers."""
    late_results_refused: int
    """Results that such a worker still sent and that the fence refused."""
    interrupted: tuple[str, ...]
    seconds: float
    database: dict[str, str]
    seed: int

    @property
    def holds(self) -> bool:
        """Whether nothing was lost or duplicated."""
        return not any(row.lost or row.duplicated for row in self.rows)

    def document(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return document(self, self.rows, total(self.rows))


def total(rows: tuple[OrderCounts, ...]) -> OrderCounts:
    """Return the sum of all kinds."""
    return OrderCounts("all", *sums(rows))


class Demo:
    """One execution of the demo on one database."""

    def __init__(
        self, trial: Trial, watch: ProgressCallback, *, orders: int, seconds: float
    ) -> None:
        self._trial = trial
        self._watch = watch
        self._orders = orders
        self._seconds = seconds
        self._frozen: ActiveFreeze | None = None
        self._zombies: dict[int, str | None] = {}
        """Frozen worker processes: the worker id by pid."""
        busy = TREES * PROCESSES * CONCURRENCY * seconds * _WORKING_SHARE * 1000
        mean = busy / (orders * (1 - _RERUN_SHARE))
        self._milliseconds = min(_LONGEST_BODY_MILLISECONDS, max(4, round(mean)))

    def run(self) -> DemoResult:
        """Enqueue orders, run them under faults, and count the effects."""
        trial = self._trial
        began_at = monotonic()
        trial.use_mix(self._order, backlog=0)
        for number in range(TREES):
            trial.start_tree(
                processes=PROCESSES,
                concurrency=CONCURRENCY,
                lease=LEASE_SECONDS,
                beat=BEAT_SECONDS,
                # Only the first tree will be frozen, so only its workers stop right before they
                # record.
                app="duly_prove.freeze_workload:app" if number == 0 else trial.settings.app,
            )
        self._enqueue()
        self._report_progress("starting workers")
        trial.wait_until_working()
        self._strike_until_done(began_at)
        self._thaw()
        wait_for(lambda: all(map(is_gone, self._zombies)), LEASE_SECONDS * 2)
        wait_for(lambda: not waiting(trial.app), LEASE_SECONDS * 2)
        self._report_progress("stopping workers")
        trial.stop_all()
        return self._count(monotonic() - began_at)

    def _order(self, number: int, random: Random) -> Call[Any]:
        milliseconds = random.randint(self._milliseconds // 4, self._milliseconds * 7 // 4)
        draw = random.random()
        if draw < _HOLD_SHARE:
            return workload.charge.call(number, milliseconds)
        if draw < _HOLD_SHARE + _RERUN_SHARE:
            return workload.notify.call(number, milliseconds, milliseconds)
        return workload.order.call(number, milliseconds)

    def _enqueue(self) -> None:
        for done in range(0, self._orders, _ENQUEUE_BATCH):
            self._watch(DemoProgress("enqueueing", done, self._orders, 0, 0))
            self._trial.feeder.enqueue(min(_ENQUEUE_BATCH, self._orders - done))

    # -- faults --

    def _strike_until_done(self, began_at: float) -> None:
        trial = self._trial
        last = began_at + self._seconds + _TIMEOUT_SECONDS
        kill_at = monotonic() + _KILL_SECONDS / 2
        freezes = [began_at + share * self._seconds for share in _FREEZES_AT]
        while waiting(trial.app) and monotonic() < last:
            now = monotonic()
            if self._frozen is not None and now >= self._frozen.thaw_at:
                self._thaw()
            if freezes and now >= freezes[0] and self._frozen is None:
                self._freeze()
                if self._frozen is not None:
                    freezes.pop(0)
            if now >= kill_at:
                self._kill()
                kill_at = now + _KILL_SECONDS * trial.random.uniform(0.8, 1.2)
            self._report_progress("working")
            pause_for(_POLL_SECONDS)

    def _kill(self) -> None:
        frozen = None if self._frozen is None else self._frozen.tree
        trees = [tree for tree in self._trial.trees if tree is not frozen and is_working(tree)]
        tree = self._trial.random.choice(trees) if trees else None
        child = None if tree is None else choose_child(tree, self._trial.random)
        if tree is not None and child is not None:
            self._trial.faults.append(kill_child(tree, child))

    def _freeze(self) -> None:
        tree: ProcessTree = self._trial.trees[0]
        self._frozen = freeze(tree, "settler", _FROZEN_SECONDS, self._trial.random)
        if self._frozen is not None:
            self._zombies |= {child.pid: child.worker_id for child in self._frozen.children}

    def _thaw(self) -> None:
        if self._frozen is not None:
            strike, freezes = thaw(self._frozen, self._trial.random)
            self._trial.faults.append(strike)
            self._trial.freezes += freezes
            self._frozen = None

    def _report_progress(self, what: str) -> None:
        frozen = 0 if self._frozen is None else len(self._frozen.children) + 1
        done = self._orders - waiting(self._trial.app)
        self._watch(
            DemoProgress(what, done, self._orders, _fault_count(self._trial.faults, "kill"), frozen)
        )

    # -- counting --

    def _count(self, seconds: float) -> DemoResult:
        trial = self._trial
        effects = Counter(effect.run_id for effect in self._effects())
        runs = {run.run_id: run for run in trial.database.runs()}
        asked = {r.run_id: r.task for r in trial.feeder.requests if r.kind == "accepted"}
        frozen = set(self._zombies.values())
        taken = [
            attempt
            for attempt in trial.database.attempts()
            if attempt.outcome == "lost" and attempt.worker_id in frozen
        ]
        return DemoResult(
            rows=tuple(_row(kind, asked, runs, effects) for kind in _KINDS),
            kills=_fault_count(trial.faults, "kill"),
            freezes=_fault_count(trial.faults, "freeze"),
            zombies=len({attempt.worker_id for attempt in taken}),
            taken_over=len(taken),
            late_results_refused=trial.writes_refused(),
            interrupted=tuple(
                sorted(run.run_id for run in runs.values() if run.state == State.INTERRUPTED)
            ),
            seconds=round(seconds, 1),
            database=trial.database.describe(),
            seed=trial.seed,
        )

    def _effects(self) -> Iterator[Effect]:
        yield from self._trial.database.rows()
        yield from self._trial.observations.read_effects()


def _row(
    kind: str, asked: dict[str, str], runs: dict[str, RunAtEnd], effects: Counter[str]
) -> OrderCounts:
    """Count one kind of order: the enqueued orders against the ledger.

    The store is read only for orders without an effect or with an unconfirmed one. If it shows them
    as interrupted or dead, they wait for an operator; otherwise they are lost.
    """
    mine = [run_id for run_id, task in asked.items() if kind_of(task) == kind]
    waiting_for_a_person = {
        run_id: runs[run_id].state
        for run_id in mine
        if run_id in runs and runs[run_id].state in {State.INTERRUPTED, State.FAILED}
    }
    repeated = sum(max(0, effects[run_id] - 1) for run_id in mine)
    done = [run_id for run_id in mine if effects[run_id] and run_id not in waiting_for_a_person]
    lost = len(mine) - len(done) - len(waiting_for_a_person)
    unfinished = sum(run_id in runs and runs[run_id].state != State.SUCCEEDED for run_id in done)
    states = Counter(waiting_for_a_person.values())
    return OrderCounts(
        kind=kind,
        enqueued=len(mine),
        succeeded=len(done) - unfinished,
        interrupted=states[State.INTERRUPTED],
        interrupted_with_effect=sum(
            state == State.INTERRUPTED and effects[run_id] == 1
            for run_id, state in waiting_for_a_person.items()
        ),
        dead=states[State.FAILED],
        lost=lost + unfinished,
        duplicated=0 if kind == "rerun" else repeated,
        again=repeated if kind == "rerun" else 0,
    )


def kind_of(task: str) -> str:
    """Return the guarantee of a task of the workload."""
    if task in workload.TRANSACTIONAL:
        return "transactional"
    return "hold" if task in workload.HELD else "rerun"


def _fault_count(strikes: list[InjectedFault], kind: str) -> int:
    return sum(strike.kind == kind and strike.took_effect for strike in strikes)


def stop_on(number: int) -> None:
    """Let a signal end the program as Ctrl-C does, so that its child processes end too."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(number, interrupt)


def run_demo(
    url: str, folder: Path, watch: ProgressCallback, *, orders: int, seconds: float, seed: int
) -> DemoResult:
    """Run the demo on a database of its own. It leaves no processes."""
    stop_on(signal.SIGTERM)
    with Trial(url, folder, seed=seed, records_transitions=False) as trial:
        return Demo(trial, watch, orders=orders, seconds=seconds).run()

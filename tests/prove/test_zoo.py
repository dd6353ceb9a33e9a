"""Proving can fail: every mutant of the engine in the zoo must be caught, on both databases.

The right invariant of a trial must catch most mutants. The tests in `store_checks.py` must catch
those that break only the store.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from duly.store.statements import load
from duly_prove import workload
from duly_prove.checker import check
from duly_prove.faults import choose_child, freeze, kill_child, thaw
from duly_prove.firing_crash_workload import PLAN_VARIABLE
from duly_prove.process_starter import ProcessStarter
from duly_prove.process_tree import ProcessTree, TreeSettings, pause_for, wait_for
from duly_prove.producer_process import start_producer
from duly_prove.scenarios.fault_points import kill_workers
from duly_prove.trial import DRAIN_SECONDS, Trial
from tests.prove.mutants import (
    ABSENT,
    INNER_VARIABLE,
    MUTANT_VARIABLE,
    MUTANTS,
    ROLE_VARIABLE,
    mutated,
)
from tests.prove.mutated_engine import (
    DATABASES,
    DoesNotApplyError,
    Edit,
    MutatedEngine,
    database_of,
)
from tests.prove.store_checks import STORE_ZOO, Check
from tests.servers.kinds import STORE_KINDS, one_of_each_database

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.prove.mutants"
SHORT_DRAIN_SECONDS = 2.0
"""Violations have occurred by then. With most mutants, some runs never end."""

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.fixture
def trial(store_url: str, tmp_path: Path, starter: ProcessStarter) -> Iterator[Trial]:
    """A trial on its own database."""
    with Trial(store_url, tmp_path, seed=1, starter=starter) as trial:
        yield trial


def mutate(trial: Trial, mutant: str) -> None:
    """Run the mutant in every process tree of a trial."""

    def mutated(settings: TreeSettings) -> TreeSettings:
        environment = {
            MUTANT_VARIABLE: mutant,
            ROLE_VARIABLE: "supervisor_process",
            INNER_VARIABLE: settings.app,
            "PYTHONPATH": python_path(),
        }
        return settings._replace(
            program=PROGRAM,
            app=f"{PROGRAM}:app",
            grace=1.0,
            environment={**settings.environment, **environment},
        )

    trial.adapt = mutated


def python_path() -> str:
    """Return a module path with the mutants and with duly as imported here."""
    return os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])


def caught(trial: Trial) -> set[str]:
    """End a trial of a mutant and return the numbers of the violated invariants."""
    trial.feeder.stop()
    return judged(trial, SHORT_DRAIN_SECONDS)


def judged(trial: Trial, drain_seconds: float) -> set[str]:
    """Like `caught`, for trials whose runs come only from schedules."""
    trial.drain(drain_seconds)
    trial.stop_all()
    return broken(trial)


def broken(trial: Trial) -> set[str]:
    """Return the numbers of the violated invariants."""
    return {one.invariant.partition(" ")[0] for one in check(trial.history()).violations}


def kill_some(trial: Trial) -> None:
    """Kill workers with running bodies."""
    for _ in range(2):
        trial.start_tree(processes=1)
    trial.feeder.start()
    trial.wait_until_working()
    while len(trial.faults) < 6:
        tree = trial.random.choice(trial.trees)
        child = choose_child(tree, trial.random)
        if child is not None:
            trial.faults.append(kill_child(tree, child))
        pause_for(0.3)


def kill_some_that_hold(trial: Trial) -> None:
    """Kill workers that run only bodies that must not start twice."""
    trial.use_mix(lambda number, _: workload.subscribe.call(number, 300), backlog=20)
    kill_some(trial)


def kill_at(*points: str) -> Callable[[Trial], None]:
    """Kill workers at fault points."""

    def strike(trial: Trial) -> None:
        trial.start_tree(processes=1)
        trial.feeder.start()
        kill_workers(trial, [*points] * 2)

    return strike


def freeze_some(*, milliseconds: int, if_taken_over: int) -> Callable[[Trial], None]:
    """Freeze workers that are about to record a result, and wake them past their lease."""

    def strike(trial: Trial) -> None:
        trial.use_mix(
            lambda number, _: workload.notify.call(number, milliseconds, if_taken_over), backlog=60
        )
        for _ in range(3):
            trial.start_tree(processes=1, async_limit=100, app="duly_prove.freeze_workload:app")
        trial.feeder.start()
        trial.wait_until_working()
        pause_for(1.0)
        for tree in trial.trees[:2] * 2:
            freeze_one(trial, tree)

    return strike


def freeze_one(trial: Trial, tree: ProcessTree) -> None:
    """Freeze a worker that is about to record a result, and wake it past its lease."""
    begun = freeze(tree, "settler", trial.settings.lease * 1.8, trial.random)
    if begun is not None:
        pause_for(trial.settings.lease * 1.8)
        strike, freezes = thaw(begun, trial.random)
        trial.faults.append(strike)
        trial.freezes += freezes
        pause_for(1.0)


def only_work(trial: Trial) -> None:
    """Inject no faults."""
    trial.crash_charges_allowed = False
    for _ in range(2):
        trial.start_tree(processes=1)
    trial.feeder.start()
    trial.wait_until_working()
    pause_for(2.0)


def fire_every_second(trial: Trial) -> None:
    """Wait until an interval has been due a few times."""
    trial.start_tree(processes=1)
    trial.wait_until_working()
    fire(trial, every=1, end=datetime.now(UTC) + timedelta(seconds=3.5))
    wait_for(lambda: trial.app.schedules.get("fired").state == "ended", 20)


def fire_and_die(trial: Trial) -> None:
    """Fire a schedule once, in a worker that dies during the firing."""
    fire(trial, at=datetime.now(UTC))
    plan = trial.folder / "plan.txt"
    plan.write_text("operate.before_commit\n")
    trial.start_tree(
        processes=1,
        app="duly_prove.firing_crash_workload:app",
        environment={PLAN_VARIABLE: str(plan)},
    )
    wait_for(lambda: trial.observations.read_faults() != [], 20)
    wait_for(lambda: trial.app.schedules.get("fired").state == "ended", 20)


def fire(trial: Trial, **when: Any) -> None:
    """Add a schedule, and record its expected firings."""
    rules = {"misfire": "all", "overlap": "allow"}
    trial.app.schedules.add("fired", workload.order, args=(1,), **rules, **when)
    trial.expect_firings("fired")


ZOO: dict[str, tuple[Callable[[Trial], None], set[str]]] = {
    "ignores_deadlines": (freeze_some(milliseconds=2_000, if_taken_over=1_500), {"I5"}),
    "settles_without_a_fence": (freeze_some(milliseconds=40, if_taken_over=2_000), {"I6"}),
    "keeps_dead_workers_live": (kill_some, {"I5"}),
    "reruns_held_runs": (kill_some_that_hold, {"I11"}),
    "clears_marks_too_soon": (kill_at("settle.before_write", "settle.before_commit"), {"I11"}),
    "starts_without_a_mark": (kill_some_that_hold, {"I11"}),
    "commits_twice": (kill_at("transaction.after_commit"), {"I9"}),
    "does_not_count_claims": (kill_some, {"I4"}),
    "loses_recovered_runs": (kill_some, {"I1"}),
    "keeps_finished_runs": (only_work, {"I14"}),
    "recovers_live_workers": (only_work, {"I12"}),
}


FEW = {
    "sqlite": {
        "commits_twice",
        "fires_again",
        "keeps_finished_runs",
        "loses_recovered_runs",
        "reruns_held_runs",
        "settles_without_a_fence",
    },
    "postgres": {"commits_twice", "fires_again", "loses_recovered_runs"},
}
"""The mutants with trials in `make test`, and in `make test-surfaces STORE=postgres`. `make prove`
runs all mutants, which takes longer."""


def hunted(mutants: Iterable[str]) -> list[ParameterSet]:
    """Return the mutants of each database. Most of them run only in `make prove`."""
    return [
        pytest.param(kind, mutant, marks=() if mutant in FEW[database] else pytest.mark.long)
        for kind in one_of_each_database(STORE_KINDS)
        for database in [database_of(kind)]
        for mutant in mutants
    ]


def checked() -> list[ParameterSet]:
    """Return the checks for the mutants of the store, on each database that can have the mutant."""
    return [
        pytest.param(kind, mutant, check, id=f"{kind}-{mutant}-{name}")
        for kind in one_of_each_database(STORE_KINDS)
        for mutant, checks in STORE_ZOO.items()
        if (mutant, database_of(kind)) not in ABSENT
        for name, check in checks.items()
    ]


SCHEDULE_ZOO: dict[str, Callable[[Trial], None]] = {
    "fires_again": fire_every_second,
    "moves_before_it_fires": fire_and_die,
}


@pytest.mark.parametrize(("store_kind", "mutant"), hunted(ZOO))
def test_a_mutant_is_caught(mutant: str, trial: Trial):
    strike, invariants = ZOO[mutant]
    mutate(trial, mutant)

    strike(trial)

    assert invariants <= caught(trial)


@pytest.mark.parametrize(("store_kind", "mutant"), hunted(SCHEDULE_ZOO))
def test_a_mutant_of_schedules_is_caught(mutant: str, trial: Trial):
    mutate(trial, mutant)

    SCHEDULE_ZOO[mutant](trial)

    assert "I15" in judged(trial, SHORT_DRAIN_SECONDS)


@pytest.mark.parametrize("act", SCHEDULE_ZOO.values(), ids=lambda act: act.__name__)
def test_without_a_mutant_schedules_fire_once(act: Callable[[Trial], None], trial: Trial):
    act(trial)

    assert judged(trial, DRAIN_SECONDS) == set()


@pytest.mark.long
def test_the_fence_alone_refuses_late_results(trial: Trial):
    mutate(trial, "ignores_deadlines")

    freeze_some(milliseconds=40, if_taken_over=2_000)(trial)

    assert trial.writes_refused() > 0
    assert caught(trial).isdisjoint({"I6", "I8", "I9", "I11"})


def test_a_producer_that_returns_before_it_commits_is_caught(trial: Trial, monkeypatch):
    monkeypatch.setenv(MUTANT_VARIABLE, "answers_before_it_commits")
    monkeypatch.setenv(ROLE_VARIABLE, "producer_process")
    monkeypatch.setenv("PYTHONPATH", python_path())

    producer = start_producer(
        trial.starter, trial.url, trial.folder, "enqueue.before_commit", 40, program=PROGRAM
    )

    producer.wait(60)
    assert "I1" in broken(trial)


def test_the_engine_without_a_mutant_survives_the_same_faults(trial: Trial):
    kill_some(trial)

    trial.feeder.stop()
    trial.wait_until_recovered()
    trial.stop_all()
    assert broken(trial) == set()


@pytest.mark.parametrize(("store_kind", "mutant", "check"), checked())
def test_a_mutant_of_the_store_is_caught(mutant: str, check: Check, store_url: str):
    with mutated(mutant, database_of(store_url)), pytest.raises(AssertionError):
        check(store_url)


@pytest.mark.parametrize(("store_kind", "mutant", "check"), checked())
def test_without_a_mutant_the_checks_of_the_store_pass(mutant: str, check: Check, store_url: str):
    check(store_url)


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_applies_unless_its_database_has_nothing_to_break(mutant: str, database: str):
    expected = pytest.raises(DoesNotApplyError) if (mutant, database) in ABSENT else nullcontext()

    with expected, mutated(mutant, database):
        pass


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize(
    "edit",
    [Edit("settle", "finish", "no such text", ""), Edit("settle", "no_such_statement", None, "")],
    ids=["text", "statement"],
)
def test_an_edit_that_does_not_apply_is_an_error_and_leaves_nothing_behind(
    edit: Edit, database: str
):
    statements = load(database, "settle")
    before = statements["finish"]
    edits = [Edit("settle", "finish", "FROM", "OF"), edit]

    with pytest.raises(DoesNotApplyError), MutatedEngine(database) as engine:
        engine.edit(sqlite=edits, postgres=edits)

    assert statements["finish"] == before


@pytest.mark.parametrize("database", DATABASES)
def test_a_function_that_the_engine_no_longer_has_cannot_be_replaced(database: str):
    with pytest.raises(DoesNotApplyError), MutatedEngine(database) as engine:
        engine.replace(engine.store, "no_such_method", None)


def test_every_mutant_has_a_test():
    assert MUTANTS.keys() == {*ZOO, *SCHEDULE_ZOO, *STORE_ZOO, "answers_before_it_commits"}

"""Engines with a bug: each mutant breaks one rule, and the proof or a test must detect it.

Each mutant applies on both databases, as edits of SQL statements and of classes and functions of
the engine; `ABSENT` names the exceptions. A mutant that does not apply raises.

In a trial, only workers and supervisors load this: `python -m tests.prove.mutants` is a supervisor,
and `tests.prove.mutants:app` is the application of its children. The environment names the mutant.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from duly import faultpoints
from duly.core import verdict
from duly.store.ops.op import FACTS, Phase
from duly.store.ops.runs import Accepted, ClaimRuns, Enqueue, Settle
from duly.store.ops.updates import AddLogs, SetProgress
from duly.store.verbs import firings
from duly.worker import supervisor, worker_main
from duly.worker.services import recovery
from duly.worker.start_marks import StartMarks
from tests.prove.mutated_engine import Edit, MutatedEngine, database_of

MUTANT_VARIABLE = "DULY_TEST_MUTANT"
INNER_VARIABLE = "DULY_TEST_INNER_APP"
ROLE_VARIABLE = "DULY_TEST_ROLE"

Mutant = Callable[[MutatedEngine], None]

ABSENT: dict[tuple[str, str], str] = {
    ("repeats_lost_commits", "sqlite"): (
        "A commit of SQLite is a call in the process of its caller. No reply can get lost."
    ),
    ("admits_without_a_lock", "sqlite"): (
        "SQLite has one writer. A claim counts and takes in one transaction, during which no other "
        "claim can count, so there is no lock to leave out."
    ),
    ("never_lowers_floors", "sqlite"): (
        "SQLite removes the index entries of runs that have ended, so claims need no floors."
    ),
}
"""By mutant and database: why the database has nothing that the mutant could break."""


# -- mutants for trials with killed and frozen processes --


def ignores_deadlines(engine: MutatedEngine) -> None:
    """No process checks deadlines: a worker that wakes up from a freeze continues."""
    engine.replace(worker_main._WorkerMonitor, "fence", lambda _self: None)
    engine.replace(supervisor.Supervisor, "_watchdog_pipe", lambda _self: None)
    engine.replace(supervisor.Supervisor, "_kill_expired", lambda _self, _now: None)
    engine.replace(supervisor.Supervisor, "_disowned", lambda _self, _worker_id: None)


def settles_without_a_fence(engine: MutatedEngine) -> None:
    """A result is recorded even if another worker holds the run."""
    ignores_deadlines(engine)
    engine.edit(
        sqlite=[
            Edit("settle", "succeed", "AND run.claim_number = ending.claim_number", ""),
            Edit("settle", "finish", "AND run.claim_number = ending.claim_number", ""),
        ],
        postgres=[
            Edit(
                "settle",
                "finish",
                "AND run.claim_number = (%(claim_numbers)s::bigint[])"
                "[pg_catalog.width_bucket(run.id, %(ids)s::uuid[])]",
                "",
            ),
        ],
    )


def keeps_dead_workers_live(engine: MutatedEngine) -> None:
    """Recovery settles the runs of a worker and does not mark the worker as dead."""
    engine.edit(
        sqlite=[Edit("recover", "end_worker", "id = :worker_id", "id = 'none'")],
        postgres=[Edit("recover", "end_worker", "id = %(worker_id)s", "id = 'none'")],
    )


def reruns_held_runs(engine: MutatedEngine) -> None:
    """A run of a hold task that vanished during its body is queued again."""
    engine.replace(verdict, "HOLD_SLOT_KINDS", frozenset())


def clears_marks_too_soon(engine: MutatedEngine) -> None:
    """The mark of a body is cleared at the end of the body, before the result is recorded."""
    engine.replace(StartMarks, "end", StartMarks.clear)


def starts_without_a_mark(engine: MutatedEngine) -> None:
    """A body starts without a mark."""
    engine.replace(StartMarks, "start", lambda *_: None)


def commits_twice(engine: MutatedEngine) -> None:
    """The writes of a body are committed before the completion, not with it."""
    task_transaction = engine.store.task_transaction

    def divided(self, seconds=None):
        transaction = task_transaction(self, seconds)

        def settle_and_commit(op, words=()):
            transaction.commit()
            return self.apply([*words, op])[-1]

        transaction.settle_and_commit = settle_and_commit
        return transaction

    engine.replace(engine.store, "task_transaction", divided)


def does_not_count_claims(engine: MutatedEngine) -> None:
    """The claim number does not grow."""
    edit = Edit("claim", "take", "claim_number = claim_number + 1", "claim_number = 1")
    engine.edit(sqlite=[edit], postgres=[edit])


def loses_recovered_runs(engine: MutatedEngine) -> None:
    """A run that returns to the queue is deleted."""
    engine.edit(
        sqlite=[
            Edit(
                "settle",
                "requeue",
                None,
                "DELETE FROM duly_runs WHERE id = :run_id AND claim_number = :claim_number",
            )
        ],
        postgres=[
            Edit(
                "settle",
                "requeue",
                None,
                "DELETE FROM duly_runs WHERE id = ANY (%(ids)s::uuid[])"
                " AND claim_number = ANY (%(claim_numbers)s::bigint[])"
                " RETURNING id::text, claim_number",
            )
        ],
    )


def keeps_finished_runs(engine: MutatedEngine) -> None:
    """A finished run is written to history and also stays in the table of claims."""
    engine.edit(
        sqlite=[Edit("settle", "leave", "AND run.state = 'running'", "AND run.state = 'none'")],
        postgres=[
            Edit(
                "settle",
                "finish",
                "DELETE FROM duly_runs AS run",
                "UPDATE duly_runs AS run SET progress = run.progress",
            )
        ],
    )


def recovers_live_workers(engine: MutatedEngine) -> None:
    """Recovery treats every other worker as dead at once."""
    read = engine.heartbeats.read

    def read_beats_alone(self):
        return {key: seen._replace(is_running=False) for key, seen in read(self).items()}

    engine.replace(engine.heartbeats, "read", read_beats_alone)
    engine.replace(recovery.LeaseMonitor, "dead", lambda _self, counters, *_: list(counters))


def answers_before_it_commits(engine: MutatedEngine) -> None:
    """`enqueue` returns before the run is written. The next `enqueue` writes it."""
    apply = engine.store.apply
    unwritten: list[Enqueue] = []

    def hasty(self, ops):
        if all(isinstance(op, Enqueue) for op in ops):
            late = [*unwritten]
            unwritten[:] = ops
            if late:
                apply(self, late)
            return [Accepted(op.run_id) for op in ops]
        return apply(self, ops)

    engine.replace(engine.store, "apply", hasty)


def fires_again(engine: MutatedEngine) -> None:
    """The cursor of a schedule does not move, and known firings are not excluded."""
    known = "duly_firings.outcome = 'skipped' AND duly_firings.instants = 1"
    engine.edit(
        sqlite=[
            Edit("schedules", "move", "next_at = moved.next_at", "next_at = plan.next_at"),
            Edit("schedules", "add_firings", f":replaces_skipped AND {known}", "true"),
        ],
        postgres=[
            Edit(
                "schedules",
                "move",
                "SET next_at = duly_time((%(next_ats)s::bigint[])"
                " [pg_catalog.array_position(%(names)s::text[], plan.name)])",
                "SET next_at = plan.next_at",
            ),
            Edit("schedules", "add_firings", f"%(replaces_skipped)s::boolean AND {known}", "true"),
        ],
    )


def moves_before_it_fires(engine: MutatedEngine) -> None:
    """The cursor is committed before the firings: a crash in between loses an instant."""
    write_plans = firings.write_plans

    def divided(transaction, planned):
        if planned:
            firings.move(transaction, [firings.position_after(each, {}, set()) for each in planned])
            is_sqlite = engine.database == "sqlite"
            execute = (transaction.cursor if is_sqlite else transaction.session).execute
            execute("COMMIT")
            faultpoints.hit("operate.before_commit")
            execute("BEGIN IMMEDIATE" if is_sqlite else "BEGIN")
        return write_plans(transaction, planned)

    engine.replace(firings, "write_plans", divided)


# -- mutants for tests of the store --


def ends_steps_without_a_fence(engine: MutatedEngine) -> None:
    """The end of a step is recorded though another worker holds the run.

    Two statements name the claim, and each of them alone keeps the step from being recorded.
    """
    of_sqlite = "AND claim_number = :claim_number AND state = 'running'"
    of_postgres = "AND claim_number = %(claim_number)s AND state = 'running'"
    engine.edit(
        sqlite=[Edit("steps", "holds", of_sqlite, ""), Edit("steps", "end", of_sqlite, "")],
        postgres=[Edit("steps", "holds", of_postgres, ""), Edit("steps", "end", of_postgres, "")],
    )


def reschedules_without_a_fence(engine: MutatedEngine) -> None:
    """A reschedule moves a run that a worker has claimed, perhaps after it has read the run."""
    queued = "AND state = 'queued'"
    unchanged = (
        "AND state <> 'running' AND claim_number = %(claim_number)s"
        " AND lane = %(lane)s AND due_at = duly_time(%(due_before)s::bigint)"
    )
    engine.edit(
        sqlite=[Edit("operate", "queued", queued, ""), Edit("operate", "reschedule", queued, "")],
        postgres=[Edit("operate", "reschedule", unchanged, "")],
    )


def settles_before_it_logs(engine: MutatedEngine) -> None:
    """Within one call, an attempt ends before its own log lines and progress are written."""
    for kind in (AddLogs, SetProgress):
        engine.set_item(FACTS, kind, FACTS[kind]._replace(phase=Phase.OPERATE))


def claims_before_it_settles(engine: MutatedEngine) -> None:
    """Within one call, runs are claimed before the settles that free their places."""
    engine.set_item(FACTS, Settle, FACTS[Settle]._replace(phase=Phase.CLAIM))
    engine.set_item(FACTS, ClaimRuns, FACTS[ClaimRuns]._replace(phase=Phase.SETTLE))
    if engine.database == "postgres":
        paths = engine.module("write_routing").PATHS
        engine.set_item(paths, Phase.SETTLE, "claim")
        engine.set_item(paths, Phase.CLAIM, "settle")


def hints_before_it_commits(engine: MutatedEngine) -> None:
    """An `enqueue` sends its hint before its commit, and none after it."""
    apply, here = engine.store.apply, threading.local()

    def hasty(self, ops):
        enqueues = [op for op in ops if isinstance(op, Enqueue)]
        if not enqueues:
            return apply(self, ops)
        self.wake(*enqueues)
        here.is_muted = True
        try:
            return apply(self, ops)
        finally:
            here.is_muted = False

    def muted(method):
        def call(self, *args):
            return None if getattr(here, "is_muted", False) else method(self, *args)

        return call

    engine.replace(engine.store, "apply", hasty)
    for name in ["send"] if engine.database == "sqlite" else ["send", "send_here", "may_piggyback"]:
        engine.replace(engine.hints, name, muted(getattr(engine.hints, name)))


def repeats_lost_commits(engine: MutatedEngine) -> None:
    """A transaction whose commit was not answered is repeated, whatever became of it."""
    connection = engine.module("reconnecting_connection").ReconnectingConnection
    run = connection.run

    def run_blindly(self, work, *, is_read=False):
        return run(self, lambda session, _lost: work(session, False), is_read=is_read)

    engine.replace(connection, "run", run_blindly)
    # A settle reads back what became of each op whose row it does not find.
    engine.replace(engine.module("settle"), "is_recorded", lambda *_: False)


def admits_without_a_lock(engine: MutatedEngine) -> None:
    """Two claims can count the running runs of one limit at the same time."""
    each_its_own = "%(name)s::text || pg_catalog.pg_backend_pid()::text"
    engine.edit(sqlite=[], postgres=[Edit("claim", "lock_limit", "%(name)s", each_its_own)])


def never_lowers_floors(engine: MutatedEngine) -> None:
    """A look for runs below the floors leaves the floors where they are."""
    found = "least(due_at, looked.looked_at - %(margin)s::float8 * interval '1 microsecond')"
    kept = (
        "(SELECT before.due_at FROM before WHERE (before.lane, before.queue, before.rank)"
        " = (known.lane, known.queue, known.rank))"
    )
    engine.edit(
        sqlite=[],
        postgres=[
            Edit("floors", "look", f"{found} AS due_at", f"greatest({found}, {kept}) AS due_at")
        ],
    )


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        ignores_deadlines,
        settles_without_a_fence,
        keeps_dead_workers_live,
        reruns_held_runs,
        clears_marks_too_soon,
        starts_without_a_mark,
        commits_twice,
        does_not_count_claims,
        loses_recovered_runs,
        keeps_finished_runs,
        recovers_live_workers,
        answers_before_it_commits,
        fires_again,
        moves_before_it_fires,
        ends_steps_without_a_fence,
        reschedules_without_a_fence,
        settles_before_it_logs,
        claims_before_it_settles,
        hints_before_it_commits,
        repeats_lost_commits,
        admits_without_a_lock,
        never_lowers_floors,
    )
}


@contextmanager
def mutated(mutant: str, database: str) -> Iterator[None]:
    """Run a block in this process with a mutant of the engine."""
    with MutatedEngine(database) as engine:
        MUTANTS[mutant](engine)
        yield


if MUTANT_VARIABLE in os.environ:
    MUTANTS[os.environ[MUTANT_VARIABLE]](MutatedEngine(database_of(os.environ["DULY_URL"])))


def main() -> int | None:
    """Run the program that the environment names."""
    program = importlib.import_module(f"duly_prove.{os.environ[ROLE_VARIABLE]}")
    return program.main()


def __getattr__(name: str) -> Any:
    """Import the application only in the child, because the import may kill the process."""
    if name != "app" or INNER_VARIABLE not in os.environ:
        message = f"mutants have no {name}"
        raise AttributeError(message)
    return importlib.import_module(os.environ[INNER_VARIABLE].partition(":")[0]).app


if __name__ == "__main__":
    sys.exit(main())

"""Engines with a bug: each mutant breaks one rule, and the checker must detect it.

Only workers and supervisors of a test load this: `python -m tests.prove.mutants` is a supervisor,
and `tests.prove.mutants:app` is the application of its children. The environment names the mutant.
"""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from duly import faultpoints
from duly.core import verdict
from duly.store.ops.runs import Accepted, Enqueue, Settled
from duly.store.sqlite import claim, maintenance, schedules, settle
from duly.store.sqlite.store import SqliteStore
from duly.store.sqlite.task_transaction import SqliteTaskTransaction
from duly.worker import supervisor, worker_main
from duly.worker.services import recovery
from duly.worker.start_marks import StartMarks

MUTANT_VARIABLE = "DULY_TEST_MUTANT"
INNER_VARIABLE = "DULY_TEST_INNER_APP"
ROLE_VARIABLE = "DULY_TEST_ROLE"


def ignores_deadlines() -> None:
    """No process checks deadlines: a worker that wakes up from a freeze continues."""
    worker_main._WorkerMonitor.fence = lambda _self: None
    supervisor.Supervisor._watchdog_pipe = lambda _self: None
    supervisor.Supervisor._kill_expired = lambda _self, _now: None
    supervisor.Supervisor._disowned = lambda _self, _worker_id: None


def settles_without_a_fence() -> None:
    """A result is recorded even if another worker holds the run."""
    ignores_deadlines()
    for name in ("succeed", "finish"):
        _rewrite(settle.SQL, name, "AND run.claim_number = ending.claim_number", "")


def keeps_dead_workers_live() -> None:
    """Recovery settles the runs of a worker and does not mark the worker as dead."""
    _rewrite(maintenance.RECOVER, "end_worker", "WHERE id = :worker_id", "WHERE id = 'nobody'")


def reruns_held_runs() -> None:
    """A run of a hold task that vanished during its body is queued again."""
    verdict.HOLD_SLOT_KINDS = frozenset()


def clears_marks_too_soon() -> None:
    """The mark of a body is cleared at the end of the body, before the result is recorded."""
    StartMarks.end = StartMarks.clear


def starts_without_a_mark() -> None:
    """A body starts without a mark."""
    StartMarks.start = lambda *_: None


def commits_twice() -> None:
    """The writes of a body are committed before the completion, not with it."""

    def settle_and_commit(self, op, _words=()):
        connection = self.connection
        connection.set_authorizer(None)
        connection.execute("COMMIT")
        faultpoints.hit("transaction.before_settle")
        connection.execute("BEGIN IMMEDIATE")
        (answer,) = settle.settle(connection.cursor(), [op], self._store.now())
        faultpoints.hit("transaction.before_commit")
        connection.execute("COMMIT" if answer is Settled.DONE else "ROLLBACK")
        self.rollback()
        return answer

    SqliteTaskTransaction.settle_and_commit = settle_and_commit


def does_not_count_claims() -> None:
    """The claim number does not grow."""
    _rewrite(claim.SQL, "take", "claim_number = claim_number + 1", "claim_number = 1")


def loses_recovered_runs() -> None:
    """A run that returns to the queue is deleted."""
    settle.SQL._texts["requeue"] = (
        "DELETE FROM duly_runs WHERE id = :run_id AND claim_number = :claim_number"
    )


def keeps_finished_runs() -> None:
    """A finished run is written to history and also stays in the table of claims."""
    _rewrite(settle.SQL, "leave", "AND run.state = 'running'", "AND run.state = 'nothing'")


def recovers_live_workers() -> None:
    """Recovery treats every other worker as dead at once."""
    recovery.LeaseMonitor.dead = lambda _self, counters, *_: list(counters)
    recovery.Recoverer._over = lambda _self, suspects, _read_at: suspects


def answers_before_it_commits() -> None:
    """`enqueue` returns before the run is written. The next `enqueue` writes it."""
    apply = SqliteStore.apply
    unwritten: list[Enqueue] = []

    def hasty(self, ops):
        if all(isinstance(op, Enqueue) for op in ops):
            late = [*unwritten]
            unwritten[:] = ops
            if late:
                apply(self, late)
            return [Accepted(op.run_id) for op in ops]
        return apply(self, ops)

    SqliteStore.apply = hasty


def fires_again() -> None:
    """The cursor of a schedule does not move, and known firings are not excluded."""
    _rewrite(schedules.SQL, "move", "SET next_at = :next_at", "SET next_at = next_at")
    statements = schedules.SqliteSchedules
    add_firings = statements.add_firings

    def forgetful(self, rows, *, makes_up):
        add_firings(self, rows, makes_up=makes_up)
        return {(row.schedule, row.instant) for row in rows}

    statements.add_firings = forgetful


def moves_before_it_fires() -> None:
    """The cursor is committed before the firings: a crash in between loses an instant."""
    add_firings = schedules.SqliteSchedules.add_firings

    def late(self, rows, *, makes_up):
        moved = [(row.instant + 1, row.schedule) for row in rows]
        self._cursor.executemany(
            "UPDATE duly_schedules SET next_at = NULL, look_at = NULL, state = 'ended'"
            " WHERE next_at < ? AND name = ?",
            moved,
        )
        self._cursor.execute("COMMIT")
        faultpoints.hit("operate.before_commit")
        self._cursor.execute("BEGIN IMMEDIATE")
        return add_firings(self, rows, makes_up=makes_up)

    schedules.SqliteSchedules.add_firings = late


MUTANTS: dict[str, Callable[[], None]] = {
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
    )
}


def _rewrite(statements, name: str, old: str, new: str) -> None:
    text = statements._texts[name]
    assert old in text, f"{name} no longer contains {old!r}"
    statements._texts[name] = text.replace(old, new)


if MUTANT_VARIABLE in os.environ:
    MUTANTS[os.environ[MUTANT_VARIABLE]]()


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

"""The costs of reads. Reads change nothing, so one store is prepared for all counts."""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from duly.clock import new_id
from duly.core.concurrency_limits import limited_lane
from duly.core.record import RunRecord
from duly.errors import StoreRefused
from duly.store.ops.operators import Cancel, LimitQueue
from duly.store.ops.steps import BeginStep
from duly.store.ops.updates import AddLogs
from duly.store.reads import DeadLetterFilter, RunFilter, ScheduleFilter
from tests.store.conformance.verbs import (
    ACTOR,
    LANE,
    MINUTE,
    TASK,
    UNKNOWN_RUN,
    WORKER,
    claim_one,
    enqueue_and_succeed,
    enqueue_one,
    fail,
    register,
    retry_now,
    run_of,
    settle,
    success,
)
from tests.store.costs.cases import TIMES, World, case
from tests.store.costs.guard_cases import key_op, letter_op, lock_op
from tests.store.costs.operator_cases import start_op
from tests.store.costs.run_cases import LINES
from tests.store.costs.step_cases import due

Check = Callable[["Filled", Any], bool]


class Filled(NamedTuple):
    """A store with at least one row for every read."""

    world: World
    running: str
    failed: str
    record: RunRecord
    """The record of a queued run."""

    @property
    def store(self) -> Any:
        """The store."""
        return self.world.store

    @property
    def limited(self) -> RunRecord:
        """Return the queued run as if its task had a limit."""
        return self.record._replace(lane=limited_lane(LANE, TASK))

    def list_due(self) -> list[Any]:
        """Return the schedules that are due."""
        found: list[Any] = self.store.list_due_schedules(10, at_least=0, less_than=2 * MINUTE)
        return found


Read = Callable[[Filled], Any]


def fill(world: World) -> Filled:
    """Write at least one row of every kind."""
    store = world.store
    register(store)
    world.apply(due(world))
    settle(store, success(claim_one(store)))
    enqueue_and_succeed(store, key="k", tags={"customer": "ada"})
    failed = enqueue_one(store)
    retry_now(store, claim_one(store))
    fail(store, claim_one(store))
    running = enqueue_one(store)
    place = claim_one(store)[:2]
    world.apply(
        BeginStep(*place, "name", "step"),
        AddLogs(*place, LINES),
        Cancel(running, ACTOR),
        lock_op(),
        letter_op(),
        start_op(),
        LimitQueue("default", 5, ACTOR),
    )
    world.clock.advance(60)
    # The time of these ends earlier.
    world.apply(lock_op("b"), key_op())
    return Filled(world, running, failed, run_of(store, enqueue_one(store)))


def is_found(_: Filled, answer: Any) -> bool:
    """Return whether there is an answer."""
    return bool(answer)


def is_empty(_: Filled, answer: Any) -> bool:
    """Return whether the answer is empty."""
    return not answer


def any_answer(_: Filled, _answer: Any) -> bool:
    """Return True: the answer depends on the database."""
    return True


def has_state(state: str) -> Check:
    """Return a check for a run in a state."""
    return lambda _, run: run.state == state


def _all_findings(filled: Filled) -> list[Any]:
    return list(filled.store.audit(10))


def _back_up(filled: Filled) -> bool:
    # PostgreSQL has its own tools for backups.
    file = filled.world.folder / f"{new_id()}.db"
    try:
        filled.store.back_up(file)
    except StoreRefused:
        return not filled.world.is_sqlite
    return file.exists()


READS: dict[str, tuple[Read, Check]] = {
    "get_run: running": (lambda f: f.store.get_run(f.running), has_state("running")),
    "get_run: final": (lambda f: f.store.get_run(f.failed), has_state("failed")),
    "get_run: unknown": (lambda f: f.store.get_run(UNKNOWN_RUN), is_empty),
    "get_states: two runs": (lambda f: f.store.get_states([f.running, f.failed]), is_found),
    "list_runs: all": (lambda f: f.store.list_runs(RunFilter()), is_found),
    "list_runs: by a tag": (
        lambda f: f.store.list_runs(RunFilter(tag=("customer", "ada"))),
        is_found,
    ),
    "list_runs: failed": (lambda f: f.store.list_runs(RunFilter(("failed",))), is_found),
    "list_runs: running": (lambda f: f.store.list_runs(RunFilter(("running",))), is_found),
    "list_runs: among 10": (lambda f: f.store.list_runs(RunFilter(scan=10)), is_found),
    "list_attempts: two": (lambda f: f.store.list_attempts(f.failed), is_found),
    "first_starts: one run": (lambda f: f.store.first_starts([f.failed]), is_found),
    "list_steps: one": (lambda f: f.store.list_steps(f.running), is_found),
    "list_logs: two": (lambda f: f.store.list_logs(f.running, 10), is_found),
    "reach_of: among 2": (lambda f: f.store.reach_of(RunFilter(scan=2)), is_found),
    "find_by_key: one run": (lambda f: f.store.find_by_key("k"), is_found),
    "list_audit_entries: all": (lambda f: f.store.list_audit_entries(None, 10), is_found),
    "get_bulk: known": (lambda f: f.store.get_bulk("one"), is_found),
    "has_silent_bulk: yes": (lambda f: f.store.has_silent_bulk(MINUTE // 2), is_found),
    "has_audit_entry: yes": (lambda f: f.store.has_audit_entry(f.running), is_found),
    "count_ends: all": (lambda f: f.store.count_ends(0, MINUTE), is_found),
    "count_ends_of_tasks: all": (lambda f: f.store.count_ends_of_tasks(0), is_found),
    "count_every_end_of_tasks: all": (lambda f: f.store.count_every_end_of_tasks(0), is_found),
    "count_retries: all": (lambda f: f.store.count_retries(0, MINUTE), is_found),
    "count_retries_of_tasks: all": (lambda f: f.store.count_retries_of_tasks(0), is_found),
    "list_oldest_ready: one queue": (lambda f: f.store.list_oldest_ready(), is_found),
    "find_oldest_transaction: none": (
        lambda f: f.store.find_oldest_transaction(),
        any_answer,
    ),
    "list_workers: one": (lambda f: f.store.list_workers(), is_found),
    "get_worker: known": (lambda f: f.store.get_worker(WORKER), is_found),
    "list_queues: one": (lambda f: f.store.list_queues(), is_found),
    "is_paused: no": (lambda f: f.store.is_paused("default"), is_empty),
    "list_holders: of a queue": (lambda f: f.store.list_holders(f.record), is_found),
    "list_holders: of a task": (lambda f: f.store.list_holders(f.limited), any_answer),
    "list_unregistered: none": (lambda f: f.store.list_unregistered(), is_empty),
    "audit: nothing": (_all_findings, is_empty),
    "count_runs: all": (lambda f: f.store.count_runs(), is_found),
    "check_integrity: whole": (lambda f: f.store.check_integrity(), is_found),
    "back_up: to a new file": (_back_up, is_found),
    "diagnose: healthy": (lambda f: f.store.diagnose(), is_found),
    "count_dead: one": (lambda f: f.store.count_dead(), is_found),
    "count_interrupted: none": (lambda f: f.store.count_interrupted(), is_empty),
    "list_dead_groups: one": (lambda f: f.store.list_dead_groups(RunFilter()), is_found),
    "summarise: all": (lambda f: f.store.summarise(), is_found),
    "list_cancel_requests: one": (lambda f: f.store.list_cancel_requests(WORKER), is_found),
    "list_schedules: all": (lambda f: f.store.list_schedules(ScheduleFilter()), is_found),
    "list_next_schedules: one": (lambda f: f.store.list_next_schedules(10), is_found),
    "list_due_schedules: one": (lambda f: f.list_due(), is_found),
    "list_schedules_ahead: none": (lambda f: f.store.list_schedules_ahead(10, by=MINUTE), is_empty),
    "list_firings: one": (lambda f: f.store.list_firings("tidy0", 2**62, 10), is_found),
    "columns_of: a table": (lambda f: f.store.columns_of("duly_runs"), any_answer),
    "list_locks: one": (lambda f: f.store.list_locks("", 10), is_found),
    "get_key: known": (lambda f: f.store.get_key("invoice"), is_found),
    "list_dead_letters: one": (lambda f: f.store.list_dead_letters(DeadLetterFilter()), is_found),
    "list_dead_letter_groups: one": (
        lambda f: f.store.list_dead_letter_groups(DeadLetterFilter()),
        is_found,
    ),
    "peek: a run is ready": (lambda f: f.store.peek(), lambda _, peek: peek.ready),
    "now: the time": (lambda f: f.store.now(), is_found),
}


def _read_case(read: Read, check: Check) -> Callable[[World], Generator[Any, Any, None]]:
    def read_repeatedly(world: World) -> Generator[Any, Any, None]:
        filled = fill(world)
        for _ in range(TIMES):
            answer = yield lambda: read(filled)
            assert check(filled, answer), answer

    return read_repeatedly


for _name, (_read, _check) in READS.items():
    case(_name)(_read_case(_read, _check))

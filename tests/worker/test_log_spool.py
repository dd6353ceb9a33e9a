"""Log lines of a killed worker that it had not written yet."""

import pytest

from duly.clock import new_id
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.ops.updates import RestoreLogs
from duly.store.ops.upkeep import RegisterWorker
from duly.worker.log_spool import LogSpool, log_spool_path, read_log_spool
from duly.worker.services.recovery import recover_worker
from duly.worker.start_marks import start_marks_path
from duly.worker.update_buffer import UpdateBuffer
from tests.worker.trees import Tree


@pytest.mark.process
def test_the_last_lines_of_a_killed_worker_are_kept(shop, store_url, tmp_path):
    with Tree(store_url, tmp_path).ready():
        run = shop.says_and_dies.enqueue(3)

        assert run.result(timeout=40) == 3

    lines = [(line.claim_number, line.message) for line in shop.app.store.list_logs(run.id, 100)]
    first, *rest = sorted({claim for claim, _ in lines})
    assert (first, len(rest)) == (1, 1)
    for claim in (first, *rest):
        said = [message for number, message in lines if number == claim]
        assert said == [f"line {number} of claim {claim}" for number in range(3)]


@pytest.fixture
def unwritten(tmp_path) -> LogSpool:
    return LogSpool(log_spool_path(tmp_path / "w.slots"))


def test_lines_are_read_again_by_run_and_claim(unwritten):
    unwritten.add("a", 1, (1, "info", "one"))
    unwritten.add("b", 7, (2, "error", "two\nthree \u2028 \ud800"))
    unwritten.add("a", 1, (3, "info", "four"))

    assert read_log_spool(unwritten.path) == [
        RestoreLogs("a", 1, ((1, "info", "one"), (3, "info", "four"))),
        RestoreLogs("b", 7, ((2, "error", "two\nthree \u2028 \ud800"),)),
    ]
    assert unwritten.path.stat().st_mode & 0o777 == 0o600


def test_what_was_written_elsewhere_is_forgotten(unwritten):
    unwritten.add("a", 1, (1, "info", "one"))

    unwritten.keep([("a", 1, (2, "info", "two"))])
    unwritten.add("a", 1, (3, "info", "three"))

    assert read_log_spool(unwritten.path) == [
        RestoreLogs("a", 1, ((2, "info", "two"), (3, "info", "three")))
    ]
    unwritten.keep([])
    assert read_log_spool(unwritten.path) == []
    assert unwritten.path.stat().st_size == 0


def test_a_line_that_was_cut_off_and_a_file_that_is_not_there_are_no_trouble(unwritten):
    assert read_log_spool(unwritten.path) == []
    unwritten.keep([])
    assert not unwritten.path.exists()
    unwritten.add("a", 1, (1, "info", "one"))
    with unwritten.path.open("ab") as file:
        file.write(b'["a", 1, 2, "inf')

    assert read_log_spool(unwritten.path) == [RestoreLogs("a", 1, ((1, "info", "one"),))]


def test_a_file_that_cannot_be_made_costs_no_line_and_no_run(tmp_path):
    unwritten = LogSpool(tmp_path / "nowhere" / "w.lines")

    unwritten.add("a", 1, (1, "info", "one"))
    unwritten.keep([])

    assert not unwritten.path.exists()


class Dying:
    """A worker that has claimed one run, with its journal and the file of its lines."""

    def __init__(self, app, folder) -> None:
        @app.task(name="task")
        def task() -> None: ...

        self.app, self.folder, self.worker_id = app, folder, new_id()
        self.run = task.enqueue()
        register = RegisterWorker(self.worker_id, "host", 1, 15.0, "[]", '["task"]')
        wants = ClaimRuns(self.worker_id, (Want(None, "thread", 1),), ("task",))
        _, (self.claim,) = app.store.apply([register, wants])
        marks = start_marks_path(folder, self.worker_id)
        self.journal = UpdateBuffer(app.store, lambda _claim: False, marks=marks)
        self.lines = log_spool_path(marks)

    def recover(self, store) -> None:
        """Recover it, as another process of this machine does."""
        recover_worker(store, self.app.bus, self.worker_id, self.folder)

    def logged(self) -> list[str]:
        """Return what is in the store."""
        return [line.message for line in self.run.logs()]


@pytest.fixture
def dying(app, tmp_path) -> Dying:
    return Dying(app, tmp_path)


class Between:
    """A store before whose writes something else happens once."""

    def __init__(self, store, happens) -> None:
        self._store, self._happens = store, happens

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    def apply(self, ops):
        """Let it happen, then write."""
        happens, self._happens = self._happens, lambda: None
        happens()
        return self._store.apply(ops)

    def do(self, op):
        return self.apply([op])[0]


@pytest.mark.surface
def test_lines_of_a_run_that_has_ended_are_kept_until_its_end_is_recorded(dying):
    dying.journal.log(dying.claim, "info", "the last")
    words = dying.journal.flush_run(dying.run.id)

    for _ in range(10):  # The store does not answer to who records the end.
        dying.journal.tick()

    assert len(read_log_spool(dying.lines)) == 1
    assert not dying.journal.is_quiet()
    dying.app.store.apply(words)
    dying.journal.confirm_written(words)
    dying.journal.tick()
    assert read_log_spool(dying.lines) == []
    assert dying.journal.is_quiet()


@pytest.mark.surface
def test_lines_of_a_run_that_has_ended_are_written_by_whoever_recovers_it(dying):
    dying.journal.log(dying.claim, "info", "the last")
    dying.journal.flush_run(dying.run.id)
    for _ in range(10):
        dying.journal.tick()

    dying.recover(dying.app.store)

    assert dying.logged() == ["the last"]


@pytest.mark.surface
def test_an_end_that_is_recorded_again_after_an_outage_brings_its_lines_again(dying):
    dying.journal.log(dying.claim, "info", "the last")
    words = dying.journal.flush_run(dying.run.id)

    assert dying.journal.flush_run(dying.run.id) == words

    dying.journal.confirm_written(words)
    assert dying.journal.flush_run(dying.run.id) == []


@pytest.mark.surface
def test_two_processes_that_recover_one_worker_at_once_write_each_line_once(dying):
    for message in ("one", "two"):
        dying.journal.log(dying.claim, "info", message)

    def another_begins() -> None:
        dying.app.store.apply(read_log_spool(dying.lines))

    dying.recover(Between(dying.app.store, another_begins))

    assert dying.logged() == ["one", "two"]
    assert not dying.lines.exists()

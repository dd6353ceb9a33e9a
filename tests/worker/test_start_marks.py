"""The memory a worker shares with its keeper: what a dead worker's marks say."""

import errno
import math
import os
import struct
from types import SimpleNamespace

import pytest

from duly import clock
from duly.clock import boot_id, monotonic, new_id
from duly.events import EventBus
from duly.worker.log_spool import log_spool_path
from duly.worker.services.maintenance import Reconciler
from duly.worker.start_marks import StartMark, StartMarks

TIMES = (160.0, 4.0)
"""When the body is overdue, and how soon it is tried again then."""


@pytest.fixture
def slots(tmp_path):
    """A fresh file of marks."""
    slots = StartMarks(tmp_path / "w.slots", create=4)
    yield slots
    slots.close()


@pytest.fixture
def seen(slots):
    """The same file, as the keeper maps it."""
    other = StartMarks(slots.path)
    yield other
    other.close()


def overwrite(slots: StartMarks, place: int, data: bytes) -> None:
    """Write bytes into the file, which the marks map into memory."""
    with slots.path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def test_a_new_file_says_nothing_and_belongs_to_its_owner_alone(slots, seen):
    assert list(seen.marks()) == []
    assert (seen.deadline, seen.attended_at, seen.beats_since) == (0.0, 0.0, None)
    assert not seen.registered
    assert seen.is_of_this_boot()
    assert slots.path.stat().st_mode & 0o777 == 0o600


def test_a_new_file_has_all_of_its_space_so_that_a_full_disk_cannot_end_its_worker(tmp_path):
    slots = StartMarks(tmp_path / "w.slots", create=5_000)
    slots.close()

    found = slots.path.stat()
    assert found.st_size > 300_000
    assert found.st_blocks * 512 >= found.st_size


def test_the_end_of_the_workers_program_is_known_by_its_lock(slots, seen):
    slots.registered = True
    assert seen.is_deserted()

    slots.hold()
    assert not seen.is_deserted()


def test_of_a_file_that_was_removed_the_end_of_its_program_is_not_known(slots, seen):
    slots.registered = True
    slots.remove()

    assert not seen.is_deserted()


def test_a_mark_is_read_back_as_it_was_made(slots, seen):
    run_id = new_id()

    slots.start(2, run_id, 7, *TIMES)

    assert list(seen.marks()) == [StartMark(run_id, 7, *TIMES, ended=False)]


def test_a_body_without_a_timeout_is_never_overdue(slots, seen):
    slots.start(0, new_id(), 1, math.inf, -1.0)

    (mark,) = seen.marks()
    assert mark.overdue_at == math.inf


def test_an_ended_body_keeps_its_mark_until_it_is_cleared(slots, seen):
    run_id = new_id()
    slots.start(1, run_id, 3, *TIMES)

    slots.end(1)
    assert [(mark.run_id, mark.ended) for mark in seen.marks()] == [(run_id, True)]
    slots.clear(1)

    assert list(seen.marks()) == []


def test_a_slot_that_is_used_again_says_only_the_new(slots, seen):
    slots.start(0, new_id(), 1, *TIMES)
    slots.clear(0)
    second = new_id()

    slots.start(0, second, 2, *TIMES)

    assert [(mark.run_id, mark.claim_number) for mark in seen.marks()] == [(second, 2)]


def test_a_half_written_mark_does_not_count(slots, seen):
    place = 64  # behind the header: the first slot, without the state that goes last
    overwrite(slots, place, struct.pack("<36sQdd", b"x" * 36, 1, *TIMES))

    assert list(seen.marks()) == []


def test_what_the_keeper_publishes_the_worker_reads(slots, seen):
    seen.deadline, seen.attended_at, seen.beats_since = 12.5, 11.5, 3.25
    slots.registered = True

    assert (slots.deadline, slots.attended_at, slots.beats_since) == (12.5, 11.5, 3.25)
    assert seen.registered
    seen.beats_since = None
    assert slots.beats_since is None


def test_marks_of_another_boot_are_not_believed(slots, seen):
    overwrite(slots, 8, bytes(reversed(boot_id())))

    assert not seen.is_of_this_boot()


def test_the_boot_is_read_once_and_a_failure_to_read_it_is_not_kept(monkeypatch):
    clock._read_boot_id.cache_clear()
    with monkeypatch.context() as without_files:
        without_files.setattr("builtins.open", _no_file)
        assert boot_id() == bytes(16)

    found = boot_id()
    monkeypatch.setattr("builtins.open", _no_file)

    assert found != bytes(16)
    assert boot_id() == found


def _no_file(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_file_that_is_not_ours_is_not_believed(slots, seen):
    overwrite(slots, 0, b"other-1\0")

    assert not seen.is_of_this_boot()


def test_a_second_file_of_one_worker_is_refused(slots):
    with pytest.raises(FileExistsError):
        StartMarks(slots.path, create=4)


class ListsWorkers:
    """A store that lists the workers that it is given."""

    def __init__(self, *workers: SimpleNamespace) -> None:
        self._workers = workers

    def list_workers(self) -> list[SimpleNamespace]:
        return list(self._workers)


class NoClaims:
    """A claimer that was never told of a run."""

    def reconcile(self) -> list[str]:
        return []


def test_a_file_in_use_does_not_look_old_to_a_program_that_cleans_up(slots):
    os.utime(slots.path, (0, 0))

    Reconciler(ListsWorkers(), NoClaims(), EventBus(), slots).tick()

    assert slots.path.stat().st_mtime > 0


def test_a_file_that_is_gone_does_no_harm_to_its_worker(slots):
    slots.path.unlink()

    pause = Reconciler(ListsWorkers(), NoClaims(), EventBus(), slots).tick()

    assert pause > 0
    assert not slots.path.exists()


@pytest.fixture
def left(tmp_path):
    """The files of another worker, last touched long ago."""
    other = StartMarks(tmp_path / "other.slots", create=4)
    lines = log_spool_path(other.path)
    lines.write_text("")
    os.utime(other.path, (0, 0))
    os.utime(lines, (0, 0))
    yield other, lines
    other.close()


def test_files_of_a_worker_that_was_recovered_on_another_host_are_removed(slots, left):
    marks, lines = left

    Reconciler(ListsWorkers(), NoClaims(), EventBus(), slots).tick()

    assert not lines.exists()
    assert not marks.path.exists()
    assert slots.path.exists()


def test_files_of_a_worker_that_lives_stay_whatever_the_wall_clock_says(slots, left):
    marks, lines = left
    marks.deadline = monotonic() + 1000

    Reconciler(ListsWorkers(), NoClaims(), EventBus(), slots).tick()

    assert lines.exists()
    assert marks.path.exists()


def test_files_of_a_worker_whose_runs_nobody_has_recovered_stay_however_old(slots, left):
    marks, lines = left
    store = ListsWorkers(SimpleNamespace(id="other", state="live"))

    Reconciler(store, NoClaims(), EventBus(), slots).tick()

    assert lines.exists()
    assert marks.path.exists()


def test_lines_without_marks_are_removed(slots, left):
    marks, lines = left
    marks.path.unlink()
    os.utime(lines, (0, 0))

    Reconciler(ListsWorkers(), NoClaims(), EventBus(), slots).tick()

    assert not lines.exists()


def test_files_of_a_worker_that_ended_lately_wait_for_its_recovery(slots, left):
    marks, lines = left
    marks.touch()

    Reconciler(ListsWorkers(), NoClaims(), EventBus(), slots).tick()

    assert lines.exists()
    assert marks.path.exists()


def test_a_broken_file_does_not_keep_a_worker_from_its_work(slots):
    broken = slots.path.with_name("broken.slots")
    broken.write_bytes(b"")
    os.utime(broken, (0, 0))

    Reconciler(ListsWorkers(), NoClaims(), EventBus(), slots).tick()

    assert slots.path.exists()

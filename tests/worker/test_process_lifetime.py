"""How programs of ours end, whatever user code has left behind."""

import errno
import os
import subprocess
import sys

import pytest

from duly.worker.runners.process import _Subprocess
from duly.worker.watchdog_program import kill_marked

pytestmark = [pytest.mark.process]

_PROGRAM = """
import sys, threading, time
from duly.worker.process_lifetime import run_and_exit

def program():
    threading.Thread(target=time.sleep, args=(60,)).start()
    {line}

run_and_exit(program)
"""


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("sys.stdout = sys.stderr = None", 0),
        ("sys.stdout.close(); sys.stderr.close()", 0),
        ("sys.stdout = object()", 0),
        ("sys.exit(75)", 75),
        ("sys.exit()", 0),
        ("1 / 0", 1),
        ("sys.stderr.close(); 1 / 0", 1),
    ],
)
def test_a_program_ends_at_once_with_its_status(line, status):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(line=line)],
        check=False,
        timeout=20,
        capture_output=True,
        text=True,
    )

    assert done.returncode == status
    assert ("ZeroDivisionError" in done.stderr) == (line == "1 / 0")


def test_what_was_printed_is_written():
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(line="print('the last word')")],
        check=False,
        timeout=20,
        capture_output=True,
        text=True,
    )

    assert done.stdout == "the last word\n"


def test_where_no_file_can_be_opened_no_process_is_looked_for(monkeypatch):
    def fail(_path: str) -> list[str]:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    killed: list[int] = []
    monkeypatch.setattr(os, "listdir", fail)
    monkeypatch.setattr(os, "kill", lambda pid, _signal: killed.append(pid))

    kill_marked("nobody has this name")

    assert killed == []


def test_a_subprocess_that_cannot_be_started_leaves_no_pipe_open(monkeypatch):
    made = list(os.pipe())

    def pipe() -> list[int]:
        if not made:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        ends.extend(made)
        made.clear()
        return ends

    ends: list[int] = []
    monkeypatch.setattr(os, "pipe", pipe)

    with pytest.raises(OSError, match="Too many open files"):
        _Subprocess("json")

    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)

"""The process that imports an application to tell its settings, whatever that import does."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.processes import children_of, is_running, wait_until

pytestmark = [pytest.mark.process]

_APP = "from duly import Duly\napp = Duly('sqlite:///told.db')\n"
_PROGRAM = """
from duly.worker.app_probe import find_settings
found = find_settings("odd:app")
print(found if isinstance(found, int) else found.url)
"""
_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
_FORK = (
    "import os, time\n"
    "pid = os.fork()\n"
    "if not pid:\n"
    "    time.sleep(60)\n"
    "    os._exit(0)\n"
    "with open('left', 'w') as file:\n"
    "    file.write(str(pid))\n"
)


@pytest.fixture
def start(tmp_path):
    """Start to ask for the settings of an application of these lines."""
    started = []

    def starts(lines, **environment):
        (tmp_path / "odd.py").write_text(lines)
        with (tmp_path / "said").open("w") as said:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                cwd=tmp_path,
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        started.append(process)
        return process

    yield starts
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()  # What the application has forked may have it open, too.
    left = tmp_path / "left"
    if left.exists():
        os.kill(int(left.read_text()), signal.SIGKILL)


@pytest.fixture
def ask(start, tmp_path):
    """Ask for them; return what was found and what was said."""

    def asked(lines, **environment):
        process = start(lines, **environment)
        found = process.stdout.readline().strip()
        process.wait(timeout=20)
        return found, (tmp_path / "said").read_text()

    return asked


@pytest.fixture(autouse=True)
def _deadline():
    """Strike what waits for ever: nothing here takes a second."""

    def strike(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, strike)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "lines",
    [
        _THREAD,
        _FORK,
        "import atexit, os\natexit.register(os._exit, 3)\n",
        "import sys\nsys.stdout = sys.stderr = None\n",
        "import sys\nsys.stdout.close()\n",
    ],
    ids=["a thread", "a fork", "a handler", "no streams", "a closed stream"],
)
def test_settings_are_told_whatever_an_application_leaves_behind(ask, lines):
    assert ask(_APP + lines) == ("sqlite:///told.db", "")


def test_a_thread_does_not_keep_a_broken_application_from_being_told(ask):
    found, said = ask(f"{_THREAD}raise RuntimeError('no config')\n")

    assert found == "1"
    assert said.splitlines()[-1].startswith(
        "Error: importing 'odd' failed: RuntimeError: no config"
    )


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("os._exit(0)", "ended with status 0"),
        ("os._exit(3)", "ended with status 3"),
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("os.closerange(3, 64)", "ended with status 1"),
    ],
)
@pytest.mark.parametrize("before", ["", _FORK], ids=["alone", "with a fork"])
def test_an_end_before_they_are_told_is_told(ask, line, how, before):
    found, said = ask(f"{_APP}{before}import os\n{line}\n")

    assert found == "1"
    (told,) = said.splitlines()
    assert told.startswith(
        f"Error: the process that imports odd:app {how} before it reported its settings; "
    )


def test_it_is_told_in_json_where_that_is_asked_for(ask):
    found, said = ask("import os\nos._exit(0)\n", DULY_LOG_FORMAT="json")

    assert found == "1"
    assert json.loads(said)["error"] == "AppBroken"


@pytest.mark.skipif(sys.platform != "linux", reason="only there the kernel is asked for it")
def test_it_does_not_outlive_who_asked(start, tmp_path):
    process = start("import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(60)\n")
    wait_until(Path(tmp_path / "begun").exists, seconds=15, what="the import begins")
    (probe,) = children_of(process.pid)

    process.terminate()

    wait_until(lambda: not is_running(probe), seconds=10, what="the probe ends")
    assert (tmp_path / "said").read_text() == ""

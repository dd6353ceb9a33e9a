"""The tutorial, followed exactly: its file, its commands in one shell, real kills.

The output of each command matches the page: the lines of a `text` block must occur in this order
in the output of the block before it. `…` matches any text. Ids and times match any text, because
they differ every time.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "tutorial" / "index.md"
LEFT_TO_THE_READER = ("pip install", "docker run")
"""Commands whose effect is already present in the test environment."""
VARYING = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?"
)
PATIENCE_SECONDS = 300


class Shell:
    """A bash into which a test pastes one block after the other, like a reader."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def paste(self, text: str) -> str:
        """Run a block. Return its output."""
        (self._folder / "pasted.sh").write_text(text)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # Bash reads the block from a file, so that no command consumes the rest of it as input.
        self._process.stdin.write(". ./pasted.sh </dev/null; echo pasted\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line == "pasted\n":
                return "".join(lines)
            lines.append(line)
        pytest.fail("the shell has ended:\n" + "".join(lines))

    def end(self) -> None:
        """Kill the shell and its remaining supervisors. Their children die with them."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


@contextmanager
def shell(folder: Path, environment: dict[str, str]) -> Iterator[Shell]:
    opened = Shell(folder, environment)
    # A command that hangs must not prevent the end of the shell.
    alarm = threading.Timer(PATIENCE_SECONDS, opened.end)
    alarm.start()
    try:
        yield opened
    finally:
        if alarm.is_alive():
            alarm.cancel()
            opened.end()


_REST = r"(\s*|\d{4}-\d\d-\d\d .*)"
"""Tasks print into the log file of supervisors. A log entry may precede the end of a line."""


def missing_line(expected: str, printed: str) -> str | None:
    """Return the first expected line that was not printed, if any."""
    lines = iter(printed.splitlines())
    for line in expected.splitlines():
        words = [re.escape(part) for part in VARYING.sub("…", line).split("…")]
        # The width of a column depends on its widest cell.
        pattern = re.compile(re.sub(r"(\\ )+", r"\\s+", ".*".join(words)).rstrip() + _REST)
        if not any(pattern.fullmatch(each) for each in lines):
            return line
    return None


@pytest.mark.process
@pytest.mark.stores("postgres")
@pytest.mark.untouched
@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_a_newcomer_can_complete_the_tutorial(tmp_path, store_url):
    folder = tmp_path / "shop"
    folder.mkdir()
    environment = {name: text for name, text in os.environ.items() if not name.startswith("DULY_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Shorter than the default of 15 s after a killed supervisor; long enough for a busy machine.
    environment |= {"DULY_LEASE": "6", "DULY_BEAT": "2"}

    with shell(folder, environment) as terminal:
        printed = ""
        for block in blocks(PAGE):
            if block.kind == "python":
                (folder / "shop.py").write_text(block.text)
            elif block.kind == "text":
                assert missing_line(block.text, printed) is None, f"{block.place}:\n{printed}"
            elif not any(words in block.text for words in LEFT_TO_THE_READER):
                ours = f"export DULY_URL='{store_url}'"
                printed = terminal.paste(re.sub("export DULY_URL=.*", ours, block.text))

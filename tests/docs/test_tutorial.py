"""The tutorial, followed to the letter: its file, its commands in one shell, real kills.

What the page says that a command prints is what it prints: the lines of a `text` block are looked
for, in their order, in what the block before it printed. `…` stands for anything, and so do ids,
which differ every time.
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
"""What is here already when tests run."""
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PATIENCE_SECONDS = 300


class Shell:
    """A bash that is given one block after the other, as a person pastes them."""

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
        """Run a block; return what it printed."""
        (self._folder / "pasted.sh").write_text(text)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # Read from a file, so that no command of the block takes the rest of it for its input.
        self._process.stdin.write(". ./pasted.sh </dev/null; echo pasted\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line == "pasted\n":
                return "".join(lines)
            lines.append(line)
        pytest.fail("the shell has ended:\n" + "".join(lines))

    def end(self) -> None:
        """Kill it, and the keepers that it left; their children die with them."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


@contextmanager
def shell(folder: Path, environment: dict[str, str]) -> Iterator[Shell]:
    opened = Shell(folder, environment)
    # A command that hangs must not keep the shell from being ended.
    alarm = threading.Timer(PATIENCE_SECONDS, opened.end)
    alarm.start()
    try:
        yield opened
    finally:
        if alarm.is_alive():
            alarm.cancel()
            opened.end()


_REST = r"(\s*|\d{4}-\d\d-\d\d .*)"
"""Tasks print into the file that keepers log to, whose words may come before the line's end."""


def missing_line(expected: str, printed: str) -> str | None:
    """Return the first line of what was expected that was not printed, if any."""
    lines = iter(printed.splitlines())
    for line in expected.splitlines():
        words = [re.escape(part) for part in UUID.sub("…", line).split("…")]
        # Columns are as wide as their widest cell.
        pattern = re.compile(re.sub(r"(\\ )+", r"\\s+", ".*".join(words)).rstrip() + _REST)
        if not any(pattern.fullmatch(each) for each in lines):
            return line
    return None


@pytest.mark.process
@pytest.mark.stores("postgres")
@pytest.mark.untouched
@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_a_newcomer_gets_through_the_tutorial(tmp_path, store_url):
    folder = tmp_path / "shop"
    folder.mkdir()
    environment = {name: text for name, text in os.environ.items() if not name.startswith("DULY_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # So that nobody has to wait for 15 s when a keeper was killed; long enough for a busy machine.
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

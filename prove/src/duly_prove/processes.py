"""The processes of this machine, with the details that fault injection needs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class ProcessRow(NamedTuple):
    """One row of the process table."""

    pid: int
    parent: int
    state: str
    """One letter as in `ps`: T is stopped, Z has ended."""


def process_table() -> dict[int, ProcessRow]:
    """Return all processes by pid."""
    if sys.platform == "linux":
        return {row.pid: row for row in map(_read_stat, _PROC.iterdir()) if row is not None}
    printed = subprocess.run(
        ["/bin/ps", "-A", "-o", "pid=,ppid=,state="], check=True, capture_output=True, text=True
    ).stdout
    rows = (line.split() for line in printed.splitlines())
    found = (ProcessRow(int(pid), int(parent), state[0]) for pid, parent, state in rows)
    return {row.pid: row for row in found}


def process(pid: int) -> ProcessRow | None:
    """Return one row of the table, or None if the process does not exist."""
    if sys.platform == "linux":
        return _read_stat(_PROC / str(pid))
    return process_table().get(pid)


def state_of(pid: int) -> str | None:
    """Return the state of one process, or None if it is gone."""
    row = process(pid)
    return None if row is None else row.state


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with. Empty if unknown."""
    try:
        block = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    items = (item.partition("=") for item in os.fsdecode(block).split("\0"))
    return {name: value for name, _, value in items}


def _read_stat(folder: Path) -> ProcessRow | None:
    if not folder.name.isdigit():
        return None
    try:
        text = (folder / "stat").read_text()
    except OSError:
        return None
    # The program's name is in parentheses and may contain any character, even parentheses.
    state, parent, *_ = text.rpartition(")")[2].split()
    return ProcessRow(int(folder.name), int(parent), state)
